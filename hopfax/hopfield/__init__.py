"""Hopfield retrieval, key spectra and noise: the pure functions of the Robertha paper.

`retrieval` iterates a query to an attractor. `attend` does this for all queries of an attention
head and reads values out. `spectrum` measures and regularizes the spectrum of keys. `corruption`
adds noise of known strength, `denoise` removes it by retrieval from clean patterns, `beam` from a
whole text with a prior that reads it, and `limits` bounds what any decoder can recover.
"""

from hopfax.hopfield.attend import Attention as Attention
from hopfax.hopfield.attend import attend as attend
from hopfax.hopfield.beam import Decoded as Decoded
from hopfax.hopfield.beam import beam_decode as beam_decode
from hopfax.hopfield.corruption import gaussian_noise as gaussian_noise
from hopfax.hopfield.corruption import matched_sigma as matched_sigma
from hopfax.hopfield.corruption import select_tokens as select_tokens
from hopfax.hopfield.corruption import snr_db as snr_db
from hopfax.hopfield.denoise import Candidates as Candidates
from hopfax.hopfield.denoise import Denoised as Denoised
from hopfax.hopfield.denoise import candidates as candidates
from hopfax.hopfield.denoise import denoise as denoise
from hopfax.hopfield.denoise import denoise_normalized as denoise_normalized
from hopfax.hopfield.denoise import estimate_sigma as estimate_sigma
from hopfax.hopfield.limits import capacity_snr_db as capacity_snr_db
from hopfax.hopfield.limits import certified_radius as certified_radius
from hopfax.hopfield.limits import reconstruction_bound as reconstruction_bound
from hopfax.hopfield.limits import recovery_bound as recovery_bound
from hopfax.hopfield.limits import recovery_rate as recovery_rate
from hopfax.hopfield.retrieval import Trajectory as Trajectory
from hopfax.hopfield.retrieval import energy as energy
from hopfax.hopfield.retrieval import retrieve as retrieve
from hopfax.hopfield.retrieval import trajectory as trajectory
from hopfax.hopfield.retrieval import update as update
from hopfax.hopfield.spectrum import Entropy as Entropy
from hopfax.hopfield.spectrum import effective_rank as effective_rank
from hopfax.hopfield.spectrum import eigen_entropy as eigen_entropy
from hopfax.hopfield.spectrum import esr_penalty as esr_penalty
from hopfax.hopfield.spectrum import gini as gini
from hopfax.hopfield.spectrum import key_spectrum as key_spectrum
from hopfax.hopfield.spectrum import participation_ratio as participation_ratio
