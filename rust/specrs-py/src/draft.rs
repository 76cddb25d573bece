//! Cache drafting (`specrs::draft`): class `SuffixCache`.

use std::cell::RefCell;

use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use specrs::draft::{CacheOptions, Draft, DraftOptions, HistoryOptions, Shape, StepDrafts};

use crate::arrays::{chain_of, documents_of, integers_of, tokens_of};
use crate::enter::{enter, invalid};

type DraftArrays<'py> = (
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<f32>>,
    u32,
    f32,
);

type StepArrays<'py> = (
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<f32>>,
);

fn shape_of(py: Python<'_>, name: &str) -> PyResult<Shape> {
    match name {
        "chain" => Ok(Shape::Chain),
        "tree" => Ok(Shape::Tree),
        _ => Err(invalid(py, &format!("shape must be 'chain' or 'tree', got '{name}'"))),
    }
}

fn min_prob_of(py: Python<'_>, min_prob: f32) -> PyResult<f32> {
    if (0.0..=1.0).contains(&min_prob) {
        return Ok(min_prob);
    }
    Err(invalid(py, &format!("min_prob must be between 0 and 1, got {min_prob}")))
}

pub fn count_of(py: Python<'_>, name: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| invalid(py, &format!("{name} must be 0 or more, got {value}")))
}

thread_local! {
    /// A draft that single steps reuse, so that they allocate nothing of their own.
    static DRAFT: RefCell<Draft> = RefCell::default();
}

/// Drafts from text already seen: the requests' own, and that of finished ones.
#[pyclass(frozen, module = "specrs._core")]
pub struct SuffixCache {
    pub(crate) cache: specrs::draft::SuffixCache,
}

#[pymethods]
impl SuffixCache {
    #[new]
    #[pyo3(signature = (vocab_size = None, *, max_match = 128, min_match = 1, max_votes = 8, max_tokens = None, max_bytes = None, max_age = None, epoch_decay = 1.0))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn new(
        py: Python<'_>,
        vocab_size: Option<u32>,
        max_match: i64,
        min_match: i64,
        max_votes: i64,
        max_tokens: Option<i64>,
        max_bytes: Option<i64>,
        max_age: Option<i64>,
        epoch_decay: f32,
    ) -> PyResult<Self> {
        let bound = |name: &str, most: Option<i64>| {
            most.map(|most| count_of(py, name, most).map(|most| most as u64)).transpose()
        };
        let history = HistoryOptions {
            max_tokens: bound("max_tokens", max_tokens)?,
            max_bytes: bound("max_bytes", max_bytes)?,
            max_age: bound("max_age", max_age)?,
            epoch_decay,
            ..HistoryOptions::default()
        };
        let options = CacheOptions {
            max_match: count_of(py, "max_match", max_match)?,
            min_match: count_of(py, "min_match", min_match)?,
            max_votes: count_of(py, "max_votes", max_votes)?,
            vocab_size,
            history,
            ..CacheOptions::default()
        };
        Ok(Self { cache: enter(py, || specrs::draft::SuffixCache::new(options))? })
    }

    fn start(&self, py: Python<'_>, request_id: i64, prompt: &Bound<'_, PyAny>) -> PyResult<()> {
        let prompt = tokens_of(py, prompt)?;
        enter(py, || self.cache.start(request_id, &prompt))
    }

    fn append(&self, py: Python<'_>, request_id: i64, tokens: &Bound<'_, PyAny>) -> PyResult<()> {
        let tokens = tokens_of(py, tokens)?;
        enter(py, || self.cache.append(request_id, &tokens))
    }

    #[pyo3(signature = (request_id, keep = true))]
    fn finish(&self, py: Python<'_>, request_id: i64, keep: bool) -> PyResult<()> {
        enter(py, || self.cache.finish(request_id, keep))
    }

    fn abort(&self, py: Python<'_>, request_id: i64) -> PyResult<()> {
        enter(py, || self.cache.abort(request_id))
    }

    fn add(&self, py: Python<'_>, document: &Bound<'_, PyAny>) -> PyResult<()> {
        let document = tokens_of(py, document)?;
        enter(py, || self.cache.add(&document))
    }

    fn add_many(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, ptr: &Bound<'_, PyAny>) -> PyResult<()> {
        let (tokens, ptr) = documents_of(py, tokens, ptr)?;
        enter(py, || self.cache.add_many(&tokens, &ptr))
    }

    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.cache.compact())
    }

    fn evict_to(&self, py: Python<'_>, tokens: i64) -> PyResult<()> {
        let tokens = count_of(py, "tokens", tokens)? as u64;
        enter(py, || {
            self.cache.evict_to(tokens);
            Ok(())
        })
    }

    fn advance_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        enter(py, || self.cache.advance_epoch())
    }

    fn count(&self, py: Python<'_>, pattern: &Bound<'_, PyAny>) -> PyResult<usize> {
        let pattern = tokens_of(py, pattern)?;
        enter(py, || self.cache.count(&pattern))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || {
            self.cache.clear();
            Ok(())
        })
    }

    #[pyo3(signature = (request_id, tokens, budget, *, shape = "chain", min_prob = 0.1, eos = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn step<'py>(
        &self,
        py: Python<'py>,
        request_id: i64,
        tokens: &Bound<'py, PyAny>,
        budget: i64,
        shape: &str,
        min_prob: f32,
        eos: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<DraftArrays<'py>> {
        let tokens = tokens_of(py, tokens)?;
        let eos = eos.map_or(Ok(Vec::new()), |eos| tokens_of(py, eos))?;
        let options = DraftOptions {
            budget: count_of(py, "budget", budget)?,
            shape: shape_of(py, shape)?,
            min_prob: min_prob_of(py, min_prob)?,
            eos: &eos,
            vocab_size: u32::MAX,
        };
        // Taken, not borrowed: what Python runs meanwhile on this thread finds an empty one.
        let mut draft = DRAFT.take();
        enter(py, || self.cache.step(request_id, &tokens, &options, &mut draft))?;
        let arrays = arrays_of(py, &draft, options.shape);
        DRAFT.set(draft);
        arrays
    }

    #[pyo3(signature = (request_id, budget, *, shape = "chain", min_prob = 0.1, eos = None))]
    fn draft<'py>(
        &self,
        py: Python<'py>,
        request_id: i64,
        budget: i64,
        shape: &str,
        min_prob: f32,
        eos: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<DraftArrays<'py>> {
        let eos = eos.map_or(Ok(Vec::new()), |eos| tokens_of(py, eos))?;
        let options = DraftOptions {
            budget: count_of(py, "budget", budget)?,
            shape: shape_of(py, shape)?,
            min_prob: min_prob_of(py, min_prob)?,
            eos: &eos,
            vocab_size: u32::MAX,
        };
        // Taken, not borrowed: what Python runs meanwhile on this thread finds an empty one.
        let mut draft = DRAFT.take();
        enter(py, || self.cache.draft(request_id, &options, &mut draft))?;
        let arrays = arrays_of(py, &draft, options.shape);
        DRAFT.set(draft);
        arrays
    }

    #[pyo3(signature = (request_ids, new_tokens, new_ptr, budget, *, shape = "chain", min_prob = 0.1, eos = None, threads = 1))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    fn step_many<'py>(
        &self,
        py: Python<'py>,
        request_ids: &Bound<'py, PyAny>,
        new_tokens: &Bound<'py, PyAny>,
        new_ptr: &Bound<'py, PyAny>,
        budget: &Bound<'py, PyAny>,
        shape: &str,
        min_prob: f32,
        eos: Option<&Bound<'py, PyAny>>,
        threads: i64,
    ) -> PyResult<StepArrays<'py>> {
        let ids = integers_of(py, "request_ids", request_ids)?;
        let new_ptr = integers_of(py, "new_ptr", new_ptr)?;
        let new_tokens = tokens_of(py, new_tokens)?;
        let budgets = match budget.extract::<i64>() {
            Ok(one) => vec![count_of(py, "budget", one)?; ids.len()],
            Err(_) => integers_of(py, "budget", budget)?
                .into_iter()
                .map(|one| count_of(py, "budget", one))
                .collect::<PyResult<Vec<_>>>()?,
        };
        let eos = eos.map_or(Ok(Vec::new()), |eos| tokens_of(py, eos))?;
        let threads = count_of(py, "threads", threads)?;
        let options = DraftOptions {
            budget: 0,
            shape: shape_of(py, shape)?,
            min_prob: min_prob_of(py, min_prob)?,
            eos: &eos,
            vocab_size: u32::MAX,
        };
        let drafted = enter(py, || self.cache.step_many(&ids, &new_tokens, &new_ptr, &budgets, &options, threads))?;
        let StepDrafts { nodes, row_ptr, match_lengths, expected } = drafted;
        Ok((
            nodes.tokens.into_pyarray(py),
            nodes.parents.into_pyarray(py),
            nodes.depths.into_pyarray(py),
            nodes.confidence.into_pyarray(py),
            row_ptr.into_pyarray(py),
            match_lengths.into_pyarray(py),
            expected.into_pyarray(py),
        ))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<std::collections::BTreeMap<&'static str, usize>> {
        let stats = enter(py, || Ok(self.cache.stats()))?;
        Ok([
            ("active_requests", stats.active_requests),
            ("active_tokens", stats.active_tokens),
            ("active_bytes", stats.active_bytes),
            ("cached_documents", stats.cached_documents),
            ("cached_tokens", stats.cached_tokens),
            ("segments", stats.segments),
            ("cached_bytes", stats.cached_bytes),
            ("epoch", stats.epoch as usize),
        ]
        .into())
    }

    fn memory_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        enter(py, || {
            let stats = self.cache.stats();
            Ok(stats.active_bytes + stats.cached_bytes)
        })
    }
}

fn arrays_of<'py>(py: Python<'py>, draft: &Draft, shape: Shape) -> PyResult<DraftArrays<'py>> {
    // Short arrays are copied: numpy's own small blocks cost less than wrapping a vector.
    let (parents, depths) = match shape {
        Shape::Chain => chain_of(py, draft.len())?,
        Shape::Tree => (PyArray1::from_slice(py, &draft.parents), PyArray1::from_slice(py, &draft.depths)),
    };
    Ok((
        PyArray1::from_slice(py, &draft.tokens),
        parents,
        depths,
        PyArray1::from_slice(py, &draft.confidence),
        draft.match_length,
        draft.expected_accepted,
    ))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<SuffixCache>()
}
