"""Slow float64 NumPy versions of the papers' equations, written from the text.

They share nothing with the library: no masks (rows that are not real are left out beforehand),
no stable softmax, no choice of the smaller matrix.
"""

import math

import numpy as np
from scipy.integrate import quad
from scipy.special import hermitenorm
from scipy.stats import norm


def energy(state, patterns, beta):
    """Eq. 2 without its constant."""
    scores = np.asarray(patterns, np.float64) @ state
    return -math.log(np.exp(beta * scores).sum()) / beta + np.square(state).sum() / 2


def update(state, patterns, beta):
    """Eq. 4."""
    patterns = np.asarray(patterns, np.float64)
    weights = np.exp(beta * (patterns @ state))
    return weights / weights.sum() @ patterns


def retrieve(query, patterns, beta, *, tol=1e-4, max_steps=50, relative=True):
    """Eqs. 7 and 8, and the relative form of 8: the state, its steps, and whether it converged."""
    state = np.asarray(query, np.float64)
    for step in range(1, max_steps + 1):
        following = update(state, patterns, beta)
        change = np.linalg.norm(following - state)
        if relative:
            change = change / np.linalg.norm(state)
        state = following
        if change <= tol:
            return state, step, True
    return state, max_steps, False


def key_spectrum(keys):
    """Eq. 9: shares of the covariance's trace, descending."""
    keys = np.asarray(keys, np.float64)
    centered = keys - keys.mean(0)
    covariance = sum(np.outer(key, key) for key in centered) / len(keys)
    return np.linalg.eigvalsh(covariance)[::-1].clip(min=0) / np.trace(covariance)


def entropy(shares):
    return -sum(p * math.log(p) for p in shares if p > 1e-300)


def eigen_entropy(keys):
    """Eq. 10."""
    return entropy(key_spectrum(keys)) / math.log(np.shape(keys)[1])


def renyi2_entropy(keys):
    """Rényi's entropy of order 2, normalized as Eq. 10."""
    return math.log(participation_ratio(keys)) / math.log(np.shape(keys)[1])


def effective_rank(keys):
    """Eq. 11."""
    return np.shape(keys)[1] ** eigen_entropy(keys)


def esr_penalty(keys, target):
    """Eq. 12."""
    return (eigen_entropy(keys) - target) ** 2


def participation_ratio(keys):
    return 1 / np.square(key_spectrum(keys)).sum()


def gini(keys):
    """Mean absolute difference over twice the mean: the definition, not the sorted formula."""
    shares = key_spectrum(keys)
    return np.abs(shares[:, None] - shares).mean() / (2 * shares.mean())


def snr_db(signal, noise):
    """Mean squared norm of the signal's rows over that of the noise's."""
    powers = [np.square(np.asarray(rows, np.float64)).sum(1).mean() for rows in (signal, noise)]
    return 10 * math.log10(powers[0] / powers[1])


def central_difference(fn, point, *, step=1e-6):
    """Gradient of a scalar function of one float64 array, coordinate by coordinate."""
    point = np.array(point, np.float64)
    gradient = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        ends = []
        for sign in (1, -1):
            moved = point.copy()
            moved[index] += sign * step
            ends.append(float(fn(moved)))
        gradient[index] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def bivariate_normal_orthant(c, rho):
    """P(X > c, Y > c) at correlation rho, by quadrature over X."""
    scale = math.sqrt(max(1 - rho**2, 1e-12))
    return quad(lambda x: norm.pdf(x) * norm.sf((c - rho * x) / scale), c, c + 9)[0]


def walsh_weights(values, num_bits):
    """Level weights from the definition: every coefficient a sum over the whole table.

    `values[number]` is the function where bit i of `number` stands for x_i = -1.
    """
    weights = np.zeros(num_bits + 1)
    for subset in range(2**num_bits):
        signs = [(-1) ** (subset & number).bit_count() for number in range(2**num_bits)]
        weights[subset.bit_count()] += np.mean(np.multiply(signs, values)) ** 2
    return weights


def hermite(degree):
    """The probabilists' polynomial of the first coordinate, orthonormal under N(0, 1)."""
    powers = hermitenorm(degree).coef[::-1] / math.sqrt(math.factorial(degree))
    return lambda x: sum(factor * x[0] ** power for power, factor in enumerate(powers))


def adversarial_walk(table, out, ids, mask, labels, delta, *, num_steps, step_size, max_norm):
    """Projected ascent on a bag of words: every perturbation, loss, gradient of table and out.

    Logits are the sum of a text's token vectors times `out`; the loss is the mean cross-entropy.
    Returns num_steps + 1 of each, the last ones at the end of the ascent.
    """
    table, out, delta = (np.asarray(part, np.float64) for part in (table, out, delta))
    count = len(ids)
    deltas, losses, gradients = [], [], []
    for _ in range(num_steps + 1):
        slopes, loss = np.zeros_like(delta), 0.0
        of_table, of_out = np.zeros_like(table), np.zeros_like(out)
        for row in range(count):
            real = np.flatnonzero(mask[row])
            bag = (table[ids[row, real]] + delta[row, real]).sum(0)
            probs = np.exp(bag @ out)
            probs /= probs.sum()
            loss -= np.log(probs[labels[row]]) / count
            error = (probs - np.eye(len(probs))[labels[row]]) / count
            of_out += np.outer(bag, error)
            slopes[row, real] = out @ error
            for place in real:
                of_table[ids[row, place]] += out @ error
        deltas.append(delta)
        losses.append(loss)
        gradients.append((of_table, of_out))
        delta = delta.copy()
        for row in range(count):
            norm = np.linalg.norm(slopes[row])
            if norm > 0:
                delta[row] += step_size * slopes[row] / norm
            delta[row] *= min(1, max_norm / max(np.linalg.norm(delta[row]), 1e-300))
    return deltas, losses, gradients
