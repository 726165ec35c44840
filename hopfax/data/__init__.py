"""GLUE, SuperGLUE and synthetic tasks, or your own data, as tokenized rows.

`load_task` reads, splits and tokenizes a task by name. `from_rows` does so for your own texts and
labels, which `read_table` reads from a file. `read_tokenizer` reads a pretrained model's tokenizer.
`builders` has builders for TensorFlow Datasets.

Tokenization requires `pip install "hopfax[pretrained]"`, builders `"hopfax[experiments]"`; without
them, they raise a ModuleNotFoundError.
"""

from hopfax.data.adversarial_sets import EVALUATION_SETS as EVALUATION_SETS
from hopfax.data.adversarial_sets import EvaluationSet as EvaluationSet
from hopfax.data.adversarial_sets import read_evaluation_set as read_evaluation_set
from hopfax.data.algorithmic import AlgorithmicData as AlgorithmicData
from hopfax.data.algorithmic import modular_addition as modular_addition
from hopfax.data.algorithmic import sparse_parity as sparse_parity
from hopfax.data.batching import Bucket as Bucket
from hopfax.data.batching import Encoded as Encoded
from hopfax.data.batching import bucket_boundaries as bucket_boundaries
from hopfax.data.batching import eval_batches as eval_batches
from hopfax.data.batching import evenly_spaced as evenly_spaced
from hopfax.data.batching import to_buckets as to_buckets
from hopfax.data.language import LanguageData as LanguageData
from hopfax.data.language import NextWords as NextWords
from hopfax.data.language import next_words as next_words
from hopfax.data.language import read_wikitext2 as read_wikitext2
from hopfax.data.load import TaskData as TaskData
from hopfax.data.load import load_task as load_task
from hopfax.data.load import task_rows as task_rows
from hopfax.data.raw import read_split as read_split
from hopfax.data.synthetic import synthetic_split as synthetic_split
from hopfax.data.tables import from_rows as from_rows
from hopfax.data.tables import read_table as read_table
from hopfax.data.tasks import TASKS as TASKS
from hopfax.data.tasks import Example as Example
from hopfax.data.tasks import TaskSpec as TaskSpec
from hopfax.data.tasks import task as task
from hopfax.data.tokenize import WordPiece as WordPiece
from hopfax.data.tokenize import encode as encode
from hopfax.data.tokenizer_files import read_tokenizer as read_tokenizer
from hopfax.data.vocabulary import train_vocabulary as train_vocabulary
