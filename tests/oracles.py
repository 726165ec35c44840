"""Slow float64 NumPy versions of the papers' equations, written as plain loops from the text.

They share nothing with the library: no masks (rows that are not real are left out beforehand),
no stable softmax, no choice of the smaller matrix.
"""

import math

import numpy as np

# -- Robertha, sections 2 and 3 ---------------------------------------------------------------


def energy(state, patterns, beta):
    """Eq. 2 without its constant."""
    total = 0.0
    for pattern in patterns:
        score = 0.0
        for p, s in zip(pattern, state, strict=True):
            score += float(p) * float(s)
        total += math.exp(beta * score)
    squared = 0.0
    for s in state:
        squared += float(s) ** 2
    return -math.log(total) / beta + squared / 2


def update(state, patterns, beta):
    """Eq. 4."""
    weights = []
    for pattern in patterns:
        score = 0.0
        for p, s in zip(pattern, state, strict=True):
            score += float(p) * float(s)
        weights.append(math.exp(beta * score))
    result = np.zeros(len(state))
    for weight, pattern in zip(weights, patterns, strict=True):
        for j in range(len(state)):
            result[j] += weight / sum(weights) * float(pattern[j])
    return result


def retrieve(query, patterns, beta, *, tol=1e-4, max_steps=50, relative=True):
    """Eqs. 7 and 8, and the relative form of 8; returns the state, its steps, whether it stands."""
    state = np.asarray(query, np.float64)
    for step in range(1, max_steps + 1):
        following = update(state, patterns, beta)
        change = math.sqrt(sum((following - state) ** 2))
        if relative:
            change = change / math.sqrt(sum(state**2))
        state = following
        if change <= tol:
            return state, step, True
    return state, max_steps, False


def covariance(keys):
    """The matrix of Eq. 9."""
    count, width = np.shape(keys)
    mean = np.zeros(width)
    for key in keys:
        mean += np.asarray(key, np.float64) / count
    result = np.zeros((width, width))
    for key in keys:
        for i in range(width):
            for j in range(width):
                result[i, j] += (key[i] - mean[i]) * (key[j] - mean[j]) / count
    return result


def key_spectrum(keys):
    """Eq. 9: shares of the covariance's trace, descending."""
    eigenvalues = np.linalg.eigvalsh(covariance(keys))[::-1].clip(min=0)
    return eigenvalues / np.trace(covariance(keys))


def entropy(shares):
    total = 0.0
    for p in shares:
        if p > 1e-300:
            total -= p * math.log(p)
    return total


def eigen_entropy(keys):
    """Eq. 10."""
    return entropy(key_spectrum(keys)) / math.log(np.shape(keys)[1])


def renyi2_entropy(keys):
    """Rényi's entropy of order 2, normalised as Eq. 10."""
    total = 0.0
    for p in key_spectrum(keys):
        total += p**2
    return -math.log(total) / math.log(np.shape(keys)[1])


def effective_rank(keys):
    """Eq. 11."""
    return np.shape(keys)[1] ** eigen_entropy(keys)


def esr_penalty(keys, target):
    """Eq. 12."""
    return (eigen_entropy(keys) - target) ** 2


def participation_ratio(keys):
    total = 0.0
    for p in key_spectrum(keys):
        total += p**2
    return 1 / total


def gini(keys):
    """Mean absolute difference over twice the mean: the definition, not the sorted formula."""
    shares = key_spectrum(keys)
    difference = 0.0
    for p in shares:
        for q in shares:
            difference += abs(p - q)
    return difference / (2 * len(shares) ** 2 * np.mean(shares))


def snr_db(signal, noise):
    """Design, section 4: mean squared norm of the signal's rows over that of the noise's."""
    powers = []
    for rows in (signal, noise):
        total = 0.0
        for row in rows:
            for value in row:
                total += float(value) ** 2
        powers.append(total / len(rows))
    return 10 * math.log10(powers[0] / powers[1])


# -- Independent of any paper -----------------------------------------------------------------


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


# -- Noise Stability of Transformer Models ----------------------------------------------------


def bivariate_normal_orthant(c, rho):
    """P(X > c, Y > c) at correlation rho, by the midpoint rule over X."""
    xs, width = np.linspace(c, c + 9, 20_001, retstep=True)
    middles = (xs[:-1] + xs[1:]) / 2
    if abs(rho) == 1:
        upper = (
            np.full(len(middles), 1.0 if rho > 0 else 0.0)
            if c >= 0
            else (np.ones(len(middles)) if rho > 0 else (middles < -c).astype(float))
        )
    else:
        upper = np.array(
            [0.5 * math.erfc((c - rho * x) / math.sqrt(2 * (1 - rho**2))) for x in middles]
        )
    density = np.exp(-(middles**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(density * upper) * width)


def walsh_weights(values, num_bits):
    """Level weights from the definition: every coefficient a sum over the whole table.

    `values[number]` is the function where bit i of `number` stands for x_i = -1.
    """
    weights = np.zeros(num_bits + 1)
    for subset in range(2**num_bits):
        total = 0.0
        for number in range(2**num_bits):
            total += values[number] * (-1) ** bin(subset & number).count("1")
        weights[bin(subset).count("1")] += (total / 2**num_bits) ** 2
    return weights


_HERMITE = (
    lambda x: 1 + 0 * x[0],
    lambda x: x[0],
    lambda x: (x[0] ** 2 - 1) / math.sqrt(2),
    lambda x: (x[0] ** 3 - 3 * x[0]) / math.sqrt(6),
    lambda x: (x[0] ** 4 - 6 * x[0] ** 2 + 3) / math.sqrt(24),
)


def hermite(degree):
    """The probabilists' polynomial of the first coordinate, orthonormal under N(0, 1)."""
    return _HERMITE[degree]


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
            bag = np.zeros(table.shape[1])
            for place in np.flatnonzero(mask[row]):
                bag += table[ids[row, place]] + delta[row, place]
            logits = bag @ out
            probs = np.exp(logits - logits.max())
            probs /= probs.sum()
            loss -= np.log(probs[labels[row]]) / count
            error = probs.copy()
            error[labels[row]] -= 1
            error /= count
            of_out += np.outer(bag, error)
            for place in np.flatnonzero(mask[row]):
                of_table[ids[row, place]] += out @ error
                slopes[row, place] = out @ error
        deltas.append(delta)
        losses.append(loss)
        gradients.append((of_table, of_out))
        delta = delta.copy()
        for row in range(count):
            norm = np.sqrt((slopes[row] ** 2).sum())
            if norm > 0:
                delta[row] += step_size * slopes[row] / norm
            size = np.sqrt((delta[row] ** 2).sum())
            if size > max_norm:
                delta[row] *= max_norm / size
    return deltas, losses, gradients
