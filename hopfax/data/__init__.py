"""From a task's name to tokenised rows: GLUE, SuperGLUE and three synthetic tasks.

`tasks` says what each task is, `raw` reads its files, `synthetic` (with `grammar`) makes rows up,
`tokenize` and `vocabulary` turn texts into arrays, `batching` cuts padding without dropping rows,
`load` does all of it in one call, `algorithmic` has modular addition and sparse parity, `language`
next-word prediction, `evaluation` reads AdvGLUE, PAWS and PAWS-X, and `builders` puts the sets into
TensorFlow Datasets' files.
Nothing here needs jax or tensorflow; `tokenizers` and `tensorflow_datasets` are imported at use.
"""

from hopfax.data.algorithmic import AlgorithmicData, modular_addition, sparse_parity
from hopfax.data.batching import Bucket, Encoded, bucket_boundaries, bucketed, eval_batches
from hopfax.data.evaluation import (
    EVALUATION_SETS,
    EvaluationSet,
    evaluation_set,
    read_evaluation_set,
)
from hopfax.data.language import LanguageData, NextWords, next_words, read_wikitext2
from hopfax.data.load import TaskData, is_partial, load_task, reported_rows, training_rows
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
    "is_partial",
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
