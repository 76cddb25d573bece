"""Registers and shared memory that each kernel may use; a change that needs more has to say so here."""

#: Name without its type suffix: (registers, bytes of static shared memory), on every target.
BUDGET = {
    "row_partials": (64, 1024),
    "row_summary": (48, 0),
    "row_law": (112, 26 * 1024),
    "row_top_k": (80, 28 * 1024),
    "round_coins": (40, 0),
    "draw_rows": (80, 1024),
    "walk_tree": (40, 0),
    "accept_chain": (64, 0),
    "token_rank": (48, 1024),
    "residual_masses": (64, 1024),
    "residual_draw": (80, 1024),
    "block_sites": (64, 0),
    "accept_block": (64, 0),
    "verify_siblings": (112, 1024),
    "select_lengths": (40, 0),
    "lookup_cache": (32, 0),
    "commit_cache": (48, 0),
    "advance_lengths": (24, 0),
    "accept_unmasked": (40, 1024),
    "tree_attention_plain": (72, 0),
    "merge_attention": (48, 0),
    "tree_attention_64": (168, 0),
    "tree_attention_128": (220, 0),
    "tree_attention_256": (255, 0),
}
FATBIN_BYTES = 3 * 2**20
PTX_VERSION = "9.0"
ARCHS = (80, 86, 89, 90, 100, 120)
