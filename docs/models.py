"""Writes the table of models.md: pip install -e ".[torch]" && python docs/models.py.

Each family gets a random encoder and a random classifier of three classes, two layers and width 16,
from `transformers`, which also computes the outputs to compare with: mean states of norm 1, and
probabilities, of padded texts. The largest difference is shown.
"""

import contextlib
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from hopfax.data.tokenize import WordPiece, text_tokenizer
from hopfax.text_model import NativeModel, load_text_model

PAGE = Path(__file__).with_name("models.md")
FAMILIES = (
    "albert bart bert camembert deberta-v2 distilbert electra gemma2 gpt2 llama mistral modernbert "
    "mpnet nystromformer qwen2 qwen3 rembert roberta t5 xlm-roberta xlnet"
)  # fmt: skip
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno")
TEXTS = ["a b c d e f", "g h", "i j k l", "m n o a b c d e f g h"]
SIZES = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 24,
    "encoder_layers": 2, "decoder_layers": 1, "num_decoder_layers": 1, "num_labels": 3,
    "pad_token_id": 0, "eos_token_id": 3, "bos_token_id": 2, "decoder_start_token_id": 3,
    "tie_word_embeddings": True, "head_dim": 8,
}  # fmt: skip


def saved(folder: str, family: str, kind: str) -> str:
    """Saves a random model with a tokenizer."""
    torch.manual_seed(0)
    sizes = {k: v for k, v in SIZES.items() if (family, k) != ("xlnet", "max_position_embeddings")}
    sizes |= {"d_head": 8} if family == "xlnet" else {}
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = getattr(transformers, kind).from_config(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    special = {"pad_token": "[PAD]", "model_input_names": ["input_ids", "attention_mask"]}
    special["tokenizer_object"] = text_tokenizer(WordPiece(tokens=TOKENS))
    transformers.PreTrainedTokenizerFast(**special).save_pretrained(folder)
    return folder


def plain(folder: str, kind: str, texts: list[str]) -> np.ndarray:
    """Returns what `transformers` computes: probabilities, or the mean state with norm 1."""
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
    if kind == "AutoModel" and model.config.is_encoder_decoder:
        model = model.get_encoder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    if kind != "AutoModel":
        return output.logits.softmax(-1).numpy()
    mask = inputs["attention_mask"][..., None]
    mean = ((output.last_hidden_state * mask).sum(1) / mask.sum(1)).numpy()
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def row(family: str) -> list[str]:
    """Returns a line of the table."""
    cells, route = [], "none"
    for kind in ("AutoModel", "AutoModelForSequenceClassification"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                model = load_text_model(saved(folder, family, kind))
            except (ValueError, AttributeError) as error:
                print(family, kind, type(error).__name__, error, file=sys.stderr)
                cells.append("no")
                continue
            route = "JAX" if isinstance(model, NativeModel) else "PyTorch"
            different = np.abs(model.outputs(TEXTS) - plain(folder, kind, TEXTS)).max()
            cells.append(f"{different:.0e}")
    return [f"`{family}`", route, *cells]


def main() -> None:
    """Replaces the table's lines."""
    transformers.utils.logging.set_verbosity_error()
    lines = []
    for family in FAMILIES.split():
        with contextlib.redirect_stdout(sys.stderr):
            lines.append(f"| {' | '.join(row(family))} |")
        print(lines[-1], flush=True)
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(r"(?m)(^\| `.*\n)+", "\n".join(lines) + "\n", text), encoding="utf-8")


if __name__ == "__main__":
    main()
