"""GLUE, SuperGLUE and synthetic tasks, from a name to tokenised rows.

`load_task` reads, splits and tokenises a task. `tasks` has the specifications, `raw` the readers,
`synthetic` and `grammar` the synthetic tasks, `tokenize` and `vocabulary` the tokenisation,
`batching` padded buckets, `algorithmic` modular addition and sparse parity, `language` next-word
prediction, `adversarial_sets` AdvGLUE, PAWS and PAWS-X, and `builders` builders for TensorFlow
Datasets. Tokenisation and builders require `pip install "hopfax[experiments]"`.
"""

from hopfax.data.adversarial_sets import (
    EVALUATION_SETS,
    EvaluationSet,
    evaluation_set,
    read_evaluation_set,
)
from hopfax.data.algorithmic import AlgorithmicData, modular_addition, sparse_parity
from hopfax.data.batching import Bucket, Encoded, bucket_boundaries, bucketed, eval_batches
from hopfax.data.language import LanguageData, NextWords, next_words, read_wikitext2
from hopfax.data.load import TaskData, load_task, reported_rows, training_rows
from hopfax.data.raw import read_split
from hopfax.data.synthetic import synthetic_split
from hopfax.data.tasks import TASKS, Example, TaskSpec, task
from hopfax.data.tokenize import WordPiece, encode, read_vocabulary
from hopfax.data.vocabulary import train_vocabulary

__all__ = [
    "EVALUATION_SETS",
    "TASKS",
    "AlgorithmicData",
    "Bucket",
    "Encoded",
    "EvaluationSet",
    "Example",
    "LanguageData",
    "NextWords",
    "TaskData",
    "TaskSpec",
    "WordPiece",
    "bucket_boundaries",
    "bucketed",
    "encode",
    "eval_batches",
    "evaluation_set",
    "load_task",
    "modular_addition",
    "next_words",
    "read_evaluation_set",
    "read_split",
    "read_vocabulary",
    "read_wikitext2",
    "reported_rows",
    "sparse_parity",
    "synthetic_split",
    "task",
    "train_vocabulary",
    "training_rows",
]
