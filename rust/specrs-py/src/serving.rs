//! Drafting for a whole batch (`specrs::serving`): class `BatchProposer`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyList;
use specrs::serving::{self, Batch, Counts, Proposal, ProposerOptions};

use crate::arrays::{flat_of, integers_of, tokens_of};
use crate::draft::{SuffixCache, count_of};
use crate::enter::{enter, invalid};

/// Drafts, the text of finished requests, and whether all requests were forgotten.
type Step<'py> = (Bound<'py, PyList>, Vec<Bound<'py, PyArray1<u32>>>, bool);

/// Drafts for the rows of an engine's batch, from a cache.
#[pyclass(frozen, module = "specrs._core")]
pub struct BatchProposer {
    cache: Py<SuffixCache>,
    proposer: Mutex<serving::Proposer>,
}

impl BatchProposer {
    /// An earlier panic was our bug and was reported; [`serving::Proposer::forget`] sets things right.
    fn lock(&self) -> MutexGuard<'_, serving::Proposer> {
        self.proposer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut serving::Proposer, &specrs::draft::SuffixCache) -> specrs::Result<T> + Send,
    ) -> PyResult<T> {
        let cache = &self.cache.get().cache;
        enter(py, || work(&mut self.lock(), cache))
    }
}

#[pymethods]
impl BatchProposer {
    #[new]
    #[pyo3(signature = (cache, draft_tokens, max_length, *, eos = None, min_prob = 0.1, threads = 1, gate = true, token_cost = 0.02, keep = true, hand_out = false, dead_steps = 200))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of one Python call")]
    #[allow(clippy::fn_params_excessive_bools, reason = "keyword arguments of one Python call")]
    fn new(
        py: Python<'_>,
        cache: Py<SuffixCache>,
        draft_tokens: i64,
        max_length: i64,
        eos: Option<&Bound<'_, PyAny>>,
        min_prob: f32,
        threads: i64,
        gate: bool,
        token_cost: f64,
        keep: bool,
        hand_out: bool,
        dead_steps: u32,
    ) -> PyResult<Self> {
        let options = ProposerOptions {
            draft_tokens: count_of(py, "draft_tokens", draft_tokens)?,
            max_length: count_of(py, "max_length", max_length)?,
            eos: eos.map_or(Ok(Vec::new()), |eos| tokens_of(py, eos))?,
            min_prob,
            threads: count_of(py, "threads", threads)?,
            gate,
            token_cost,
            keep,
            hand_out,
            dead_steps,
        };
        let proposer = Mutex::new(enter(py, || serving::Proposer::new(options))?);
        Ok(Self { cache, proposer })
    }

    #[pyo3(signature = (tokens, lengths, fresh, seconds = None))]
    fn step<'py>(
        &self,
        py: Python<'py>,
        tokens: PyReadonlyArray2<'py, i32>,
        lengths: &Bound<'py, PyAny>,
        fresh: &Bound<'py, PyAny>,
        seconds: Option<f64>,
    ) -> PyResult<Step<'py>> {
        let counts_of = |name: &str, value: &Bound<'py, PyAny>| -> PyResult<Vec<usize>> {
            integers_of(py, name, value)?.into_iter().map(|count| count_of(py, name, count)).collect()
        };
        let (lengths, fresh) = (counts_of("lengths", lengths)?, counts_of("fresh", fresh)?);
        let (rows, width) = (tokens.shape()[0], tokens.shape()[1]);
        if lengths.len() != rows || fresh.len() != rows {
            let found = (lengths.len(), fresh.len());
            return Err(invalid(py, &format!("{rows} rows of text need as many lengths and counts, got {found:?}")));
        }
        let text = flat_of(py, "tokens", &tokens)?;
        let Proposal { tokens, row_ptr, finished, anew } = self
            .with(py, |proposer, cache| proposer.step(cache, &Batch::new(text, width, &lengths, &fresh)?, seconds))?;
        let drafts = row_ptr.windows(2).map(|ends| PyList::new(py, &tokens[ends[0]..ends[1]]));
        let drafts = PyList::new(py, drafts.collect::<PyResult<Vec<_>>>()?)?;
        Ok((drafts, finished.into_iter().map(|text| text.into_pyarray(py)).collect(), anew))
    }

    fn finish_all<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyArray1<u32>>>> {
        let texts = self.with(py, serving::Proposer::finish_all)?;
        Ok(texts.into_iter().map(|text| text.into_pyarray(py)).collect())
    }

    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |proposer, cache| {
            proposer.forget(cache);
            Ok(())
        })
    }

    fn counts(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        let (counts, active) = self.with(py, |proposer, _| Ok((proposer.counts(), proposer.active())))?;
        let Counts { steps, requests, drafted, accepted, emitted } = counts;
        let named = [
            ("steps", steps),
            ("requests", requests),
            ("drafted", drafted),
            ("accepted", accepted),
            ("emitted", emitted),
            ("active", active as u64),
        ];
        Ok(named.into())
    }

    fn step_times(&self, py: Python<'_>) -> PyResult<(Vec<f64>, Vec<f64>)> {
        self.with(py, |proposer, _| Ok(proposer.times().measured().iter().copied().unzip()))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<BatchProposer>()
}
