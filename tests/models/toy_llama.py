"""A stand-in for the module ``llama_cpp``: cells, sequences and batches with llama.cpp's rules, and a law for weights.

It keeps cells as llama.cpp's unified cache does (a position and a set of sequences each), refuses the batches that
``llama_batch_allocr`` refuses, and lets a row see the cells of its first sequence at its own or earlier positions. A
row's logits are a function of exactly what it sees.
"""

import ctypes
import functools
import itertools
import pickle
import types
import zlib

import numpy as np

VOCABULARY = 61
END = 60
FIELDS = (
    "n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_outputs_max", "n_threads", "n_threads_batch", "flash_attn_type",
    "kv_unified", "swa_full", "no_perf",
)  # fmt: skip


def law(visible, vocabulary=VOCABULARY):
    """Logits after the tokens ``visible``: mostly of the last two, so that text repeats, a little of all of them."""
    near = _near(tuple(map(int, visible[-2:])), vocabulary)
    # Different in every token's logit for every text that could have been seen instead.
    all_of_it = zlib.crc32(np.asarray(visible, np.int64).tobytes()) % 9973
    return (near + np.sin(np.arange(1, vocabulary + 1) * all_of_it) * 1e-3).astype(np.float32)


@functools.cache
def _near(pair, vocabulary):
    near = np.random.default_rng(zlib.crc32(np.asarray(pair, np.int64).tobytes())).normal(size=vocabulary)
    near[:10] += 3.0  # few words, so that they come back
    near[END] = -9.0
    return near


class Batch(ctypes.Structure):
    """As ``llama_batch``."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


class Cells:
    """A context."""

    def __init__(self, settings):
        assert settings.kv_unified
        assert settings.swa_full
        self.size = settings.n_ctx
        self.max_batch = settings.n_batch
        self.max_outputs = settings.n_outputs_max
        self.cells = []  # [token, position, set of sequences]
        self.output = None
        self.freed = False

    def of(self, sequence):
        return sorted((c for c in self.cells if sequence in c[2]), key=lambda c: c[1])

    def last(self, sequence):
        return max((c[1] for c in self.cells if sequence in c[2]), default=-1)

    def first(self, sequence):
        return min((c[1] for c in self.cells if sequence in c[2]), default=-1)

    def sweep(self):
        self.cells = [c for c in self.cells if c[2]]


class ToyLlama(types.ModuleType):
    """The module. ``forwards`` records the rows of each decode, ``contexts`` every context made."""

    LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED = 0, 1
    llama_token = ctypes.c_int32
    llama_batch = Batch

    def __init__(self, vocabulary=VOCABULARY, max_context=4096, template=None):
        super().__init__("llama_cpp")
        self.vocabulary, self.max_context, self.template = vocabulary, max_context, template
        self.llama_context_params = types.SimpleNamespace(_fields_=[(name, None) for name in FIELDS])
        self.forwards, self.contexts, self.most_cells = [], [], None

    # model and vocabulary
    def llama_model_default_params(self):
        return types.SimpleNamespace(n_gpu_layers=0)

    def llama_model_load_from_file(self, path, settings):
        return "weights"

    def llama_model_free(self, model):
        pass

    def llama_model_desc(self, model, buffer, size):
        buffer.value = b"toy 1K Q4_K"

    def llama_model_is_recurrent(self, model):
        return False

    llama_model_is_hybrid = llama_model_has_encoder = llama_model_is_diffusion = llama_model_is_recurrent

    def llama_model_n_ctx_train(self, model):
        return self.max_context

    def llama_model_get_vocab(self, model):
        return "vocabulary"

    def llama_model_chat_template(self, model, name):
        return self.template

    def llama_vocab_n_tokens(self, vocabulary):
        return self.vocabulary

    def llama_vocab_is_eog(self, vocabulary, token):
        return token in (END, END - 1)

    def llama_vocab_is_control(self, vocabulary, token):
        return token in (END, END - 1)

    def llama_vocab_eos(self, vocabulary):
        return END

    def llama_vocab_bos(self, vocabulary):
        return -1

    def llama_vocab_get_text(self, vocabulary, token):
        return chr(ord("A") + token).encode()

    def llama_tokenize(self, vocabulary, text, length, ids, room, add_special, parse_special):
        values = [b - ord("A") for b in text[:length]]
        ids[: len(values)] = values
        return len(values)

    def llama_detokenize(self, *arguments):
        raise AssertionError("not called")

    def llama_token_to_piece(self, vocabulary, token, buffer, room, strip, special):
        piece = b"<end>" * 20 if token == END else chr(ord("A") + token).encode()
        if len(piece) > room:
            return -len(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    # contexts
    def llama_context_default_params(self):
        return types.SimpleNamespace(**dict.fromkeys(FIELDS))

    def llama_init_from_model(self, model, settings):
        if self.most_cells is not None and settings.n_ctx > self.most_cells:
            return None
        self.contexts.append(Cells(settings))
        return self.contexts[-1]

    def llama_free(self, context):
        assert not context.freed
        context.freed = True

    def llama_get_memory(self, context):
        return context

    def llama_memory_seq_rm(self, context, sequence, start, end):
        assert not context.freed
        for cell in context.cells:
            if cell[1] >= max(start, 0) and (end < 0 or cell[1] < end):
                cell[2].discard(sequence)
        context.sweep()
        return True

    def llama_memory_seq_cp(self, context, source, target, start, end):
        assert not context.freed
        for cell in context.cells:
            if source in cell[2] and cell[1] >= max(start, 0) and (end < 0 or cell[1] < end):
                cell[2].add(target)

    def llama_state_seq_get_size(self, context, sequence):
        return len(pickle.dumps([c[:2] for c in context.of(sequence)]))

    def llama_state_seq_get_data(self, context, data, size, sequence):
        found = pickle.dumps([c[:2] for c in context.of(sequence)])
        ctypes.memmove(data, found, len(found))
        return len(found)

    def llama_state_seq_set_data(self, context, data, size, sequence):
        context.cells += [[*cell, {sequence}] for cell in pickle.loads(bytes(data))]
        return size

    # forwards
    def llama_decode(self, context, batch):
        assert not context.freed
        rows = [
            (batch.token[i], batch.pos[i], [batch.seq_id[i][s] for s in range(batch.n_seq_id[i])], batch.logits[i])
            for i in range(batch.n_tokens)
        ]
        assert 0 < len(rows) <= context.max_batch
        assert sum(bool(row[3]) for row in rows) <= context.max_outputs
        if not _is_valid(context, rows):
            return -1
        if len(context.cells) + len(rows) > context.size:
            return 1
        self.forwards.append(rows)
        # All cells are written before any row attends: that a row sees no later one is the work of positions alone.
        context.cells += [[token, position, set(sequences)] for token, position, sequences, _ in rows]
        wanted = [
            law([c[0] for c in context.of(sequences[0]) if c[1] <= position], self.vocabulary)
            for _, position, sequences, want in rows
            if want
        ]
        # As llama.cpp does, overwrite the memory that an earlier forward's logits lie in.
        if context.output is None or len(context.output) < len(wanted):
            context.output = np.zeros((len(wanted), self.vocabulary), np.float32)
        context.output[: len(wanted)] = wanted or 0
        return 0

    def llama_get_logits(self, context):
        return context.output.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def _is_valid(context, rows):
    """Apply the checks of ``llama_batch_allocr::init``."""
    positions = {}
    for _, position, sequences, _ in rows:
        for sequence in sequences:
            positions.setdefault(sequence, []).append(position)
    for sequence, found in positions.items():
        last = context.last(sequence)
        consecutive = last < 0 or min(found) == last + 1
        if not consecutive or max(found) - min(found) + 1 > len(set(found)) or found != sorted(found):
            return False
        if not 0 <= sequence < 256:
            return False
    sets = {}
    for _, _, sequences, _ in rows:
        for a, b in itertools.pairwise(sequences):
            if (context.first(a), context.last(a)) != (context.first(b), context.last(b)):
                return False
        for sequence in sequences:
            sets[sequence] = sets.get(sequence, set(range(256))) & set(sequences)
            if not sets[sequence]:
                return False
    return True
