"""specrs inside transformers: a decoding method for ``model.generate``, and candidate generators for its assisted loop.

::

    model.generate(**inputs, max_new_tokens=200, custom_generate=specrs.hf.generate)

    model.generate(
        **inputs, custom_generate=specrs.hf.assisted, candidate_generator=specrs.hf.CacheCandidateGenerator()
    )

Nothing is downloaded and no remote code runs: ``custom_generate`` is given a function of this package.
"""

from specrs.models.loading import require_hf

require_hf()

from specrs.hf.versions import require_supported_transformers  # noqa: E402 - only after torch is known to be there

require_supported_transformers()

from specrs.hf.assisted_loop import assisted  # noqa: E402
from specrs.hf.candidates import CacheCandidateGenerator, RoutedCandidateGenerator  # noqa: E402
from specrs.hf.decoding import GenerateOutput, generate  # noqa: E402

__all__ = ["CacheCandidateGenerator", "GenerateOutput", "RoutedCandidateGenerator", "assisted", "generate"]
