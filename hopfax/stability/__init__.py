"""Noise stability of any function: estimates with standard errors, spectra, influence, theory.

`noise` draws correlated pairs of inputs and `estimators` measures stability with them. `spectrum`
computes the weight of a function at each degree, `influence` the inputs it depends on, `operators`
smoothed functions. `theory` has the paper's formulas for layers and `penalty` its regularizer.
"""

from hopfax.stability import theory as theory
from hopfax.stability.estimators import Estimate as Estimate
from hopfax.stability.estimators import noise_stability as noise_stability
from hopfax.stability.influence import geometric_influence as geometric_influence
from hopfax.stability.influence import junta_bound as junta_bound
from hopfax.stability.influence import total_influence as total_influence
from hopfax.stability.noise import bit_pair as bit_pair
from hopfax.stability.noise import bonami_beckner_pair as bonami_beckner_pair
from hopfax.stability.noise import gaussian_pair as gaussian_pair
from hopfax.stability.operators import hermite as hermite
from hopfax.stability.operators import hermite_coefficients as hermite_coefficients
from hopfax.stability.operators import mehler_kernel as mehler_kernel
from hopfax.stability.operators import ornstein_uhlenbeck as ornstein_uhlenbeck
from hopfax.stability.operators import ornstein_uhlenbeck_grid as ornstein_uhlenbeck_grid
from hopfax.stability.penalty import stability_penalty as stability_penalty
from hopfax.stability.penalty import stability_regularizer as stability_regularizer
from hopfax.stability.spectrum import LevelWeights as LevelWeights
from hopfax.stability.spectrum import concentration_degree as concentration_degree
from hopfax.stability.spectrum import level_weights as level_weights
from hopfax.stability.spectrum import spectral_tail_bound as spectral_tail_bound
from hopfax.stability.spectrum import walsh_coefficients as walsh_coefficients
from hopfax.stability.spectrum import walsh_weights as walsh_weights
from hopfax.stability.theory import attention_stability as attention_stability
from hopfax.stability.theory import relu_stability as relu_stability
