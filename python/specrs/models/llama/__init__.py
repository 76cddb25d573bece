"""Parts of the llama.cpp adapter: the library, trees as sequences, the memory of keys and values, the tokenizer."""
