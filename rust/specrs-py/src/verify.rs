//! Verification (`specrs::verify`).

use numpy::ndarray::Axis;
use numpy::{
    Element, IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use specrs::verify::{
    Batch, Coins, Divergence, DraftLaw, Logits, Relaxed, Replacement, Rule, Sampling, Verdict, draw as draw_rows,
    verify as verify_batch,
};

use crate::enter::{enter, invalid};

type Array1<'py, T> = Bound<'py, PyArray1<T>>;
type Array2<'py, T> = Bound<'py, PyArray2<T>>;

/// A two-dimensional array in one of the logit formats, held for the length of a call.
enum LogitArray<'py> {
    F32(PyReadonlyArray2<'py, f32>),
    F16(PyReadonlyArray2<'py, u16>),
    Bf16(PyReadonlyArray2<'py, u16>),
}

/// The rows of such an array.
enum LogitRows<'a> {
    F32(Vec<&'a [f32]>),
    F16(Vec<&'a [u16]>),
    Bf16(Vec<&'a [u16]>),
}

impl LogitRows<'_> {
    fn view(&self) -> Logits<'_> {
        match self {
            Self::F32(rows) => Logits::F32(rows),
            Self::F16(rows) => Logits::F16(rows),
            Self::Bf16(rows) => Logits::Bf16(rows),
        }
    }
}

/// The array as the given element type, or a typed error that names what was found.
fn typed<'py, T: Element>(
    py: Python<'py>,
    name: &str,
    array: &Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<PyReadonlyArray2<'py, T>> {
    let Ok(array) = array.cast::<PyArray2<T>>() else {
        let found = array.getattr("dtype").and_then(|d| Ok(format!("{} of dtype {d}", array.getattr("ndim")?)));
        let found = found.map_or_else(|_| array.get_type().to_string(), |f| format!("{f} (dimensions, dtype)"));
        return Err(invalid(py, &format!("{name} must be a two-dimensional array of {expected}, got {found}")));
    };
    let odd = array.strides().iter().any(|stride| stride % size_of::<T>() as isize != 0);
    if odd || !(array.data() as usize).is_multiple_of(align_of::<T>()) {
        return Err(invalid(py, &format!("{name} must be aligned to its element size, got a misaligned view")));
    }
    array.try_readonly().map_err(|_| invalid(py, &format!("{name} is being written to by another call")))
}

/// Every row as a slice; rows may be further apart than they are long.
fn rows<'a, T: Element>(py: Python<'_>, name: &str, array: &'a PyReadonlyArray2<'_, T>) -> PyResult<Vec<&'a [T]>> {
    let view = array.as_array();
    let row = |index| view.index_axis_move(Axis(0), index).to_slice();
    (0..view.nrows()).map(row).collect::<Option<_>>().ok_or_else(|| {
        let strides = array.strides();
        invalid(py, &format!("the last axis of {name} must be contiguous, got strides {strides:?} bytes"))
    })
}

impl<'py> LogitArray<'py> {
    fn new(py: Python<'py>, array: &Bound<'py, PyAny>, dtype: &str) -> PyResult<Self> {
        match dtype {
            "f32" => Ok(Self::F32(typed(py, "logits", array, "float32 for dtype 'f32'")?)),
            "bf16" => Ok(Self::Bf16(typed(py, "logits", array, "uint16 for dtype 'bf16'")?)),
            "f16" => {
                // numpy's own half type; its bits are what the library reads.
                let is_half = array.getattr("dtype").is_ok_and(|d| d.eq("float16").unwrap_or(false));
                let bits = if is_half { array.call_method1("view", ("uint16",))? } else { array.clone() };
                Ok(Self::F16(typed(py, "logits", &bits, "float16 for dtype 'f16'")?))
            }
            _ => Err(invalid(py, &format!("dtype must be 'f32', 'f16' or 'bf16', got '{dtype}'"))),
        }
    }

    fn rows(&self, py: Python<'_>) -> PyResult<LogitRows<'_>> {
        Ok(match self {
            Self::F32(array) => LogitRows::F32(rows(py, "logits", array)?),
            Self::F16(array) => LogitRows::F16(rows(py, "logits", array)?),
            Self::Bf16(array) => LogitRows::Bf16(rows(py, "logits", array)?),
        })
    }
}

/// A contiguous one-dimensional array as a slice.
fn slice<'a, T: Element>(py: Python<'_>, name: &str, array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array
        .as_slice()
        .map_err(|_| invalid(py, &format!("{name} must be contiguous, got strides {:?} bytes", array.strides())))
}

/// The sampling parameters of each request (or row).
fn sampling(
    py: Python<'_>,
    temperature: &PyReadonlyArray1<'_, f32>,
    top_k: &PyReadonlyArray1<'_, i32>,
    top_p: &PyReadonlyArray1<'_, f32>,
    min_p: &PyReadonlyArray1<'_, f32>,
) -> PyResult<Vec<Sampling>> {
    let (temperature, top_k) = (slice(py, "temperature", temperature)?, slice(py, "top_k", top_k)?);
    let (top_p, min_p) = (slice(py, "top_p", top_p)?, slice(py, "min_p", min_p)?);
    let lengths = [temperature.len(), top_k.len(), top_p.len(), min_p.len()];
    if lengths != [temperature.len(); 4] {
        return Err(invalid(py, &format!("temperature, top_k, top_p, min_p must have one length, got {lengths:?}")));
    }
    (0..temperature.len())
        .map(|i| match u32::try_from(top_k[i]) {
            Ok(k) => Ok(Sampling { temperature: temperature[i], top_k: k, top_p: top_p[i], min_p: min_p[i] }),
            Err(_) => Err(invalid(py, &format!("top_k must be 0 (off) or positive, got {} for request {i}", top_k[i]))),
        })
        .collect()
}

/// The draft's law as it came: dense rows, sparse rows, certainty, or nothing.
struct LawArrays<'py> {
    dense: Option<PyReadonlyArray2<'py, f32>>,
    sparse: Option<PyReadonlyArray1<'py, f32>>,
    ids: Option<PyReadonlyArray1<'py, u32>>,
    ptr: Option<PyReadonlyArray1<'py, i64>>,
    row_of: Option<PyReadonlyArray1<'py, i64>>,
    one_hot: bool,
}

impl<'py> LawArrays<'py> {
    fn new(
        py: Python<'py>,
        probs: Option<Bound<'py, PyAny>>,
        row_of: Option<PyReadonlyArray1<'py, i64>>,
        ids: Option<PyReadonlyArray1<'py, u32>>,
        ptr: Option<PyReadonlyArray1<'py, i64>>,
        one_hot: bool,
    ) -> PyResult<Self> {
        if ids.is_some() != ptr.is_some() || (ids.is_some() && probs.is_none()) || (one_hot && probs.is_some()) {
            return Err(invalid(
                py,
                "a draft law is draft_probs alone, or draft_probs with draft_ids and draft_ptr, or one_hot alone",
            ));
        }
        let (mut dense, mut sparse) = (None, None);
        match probs {
            Some(probs) if ids.is_some() => {
                let Ok(array) = probs.cast::<PyArray1<f32>>() else {
                    return Err(invalid(py, "draft_probs of a sparse law must be a one-dimensional float32 array"));
                };
                sparse = Some(array.readonly());
            }
            Some(probs) => dense = Some(typed::<f32>(py, "draft_probs", &probs, "float32")?),
            None => {}
        }
        Ok(Self { dense, sparse, ids, ptr, row_of, one_hot })
    }

    fn rows(&self, py: Python<'_>) -> PyResult<Vec<&[f32]>> {
        self.dense.as_ref().map_or(Ok(vec![]), |dense| rows(py, "draft_probs", dense))
    }

    /// The law, or `None` if none was given. `rows` are [`Self::rows`].
    fn law<'a>(&'a self, py: Python<'_>, rows: &'a [&'a [f32]]) -> PyResult<Option<DraftLaw<'a>>> {
        let row_of = self.row_of.as_ref().map(|r| slice(py, "draft_rows", r)).transpose()?;
        if self.one_hot {
            return Ok(Some(DraftLaw::OneHot));
        }
        if let (Some(probs), Some(ids), Some(ptr)) = (&self.sparse, &self.ids, &self.ptr) {
            let (probs, ids) = (slice(py, "draft_probs", probs)?, slice(py, "draft_ids", ids)?);
            return Ok(Some(DraftLaw::Sparse { ptr: slice(py, "draft_ptr", ptr)?, ids, probs, row_of }));
        }
        Ok(self.dense.as_ref().map(|_| DraftLaw::Dense { rows, row_of }))
    }
}

/// Path pointers, path, bonus and status of a batch.
type VerdictArrays<'py> = (Array1<'py, i64>, Array1<'py, i32>, Array1<'py, u32>, Array1<'py, u8>);

fn verdict_arrays(py: Python<'_>, verdict: Verdict) -> (VerdictArrays<'_>, Array1<'_, f64>) {
    let arrays = (
        verdict.path_ptr.into_pyarray(py),
        verdict.path.into_pyarray(py),
        verdict.bonus.into_pyarray(py),
        verdict.status.into_pyarray(py),
    );
    (arrays, verdict.bias.into_pyarray(py))
}

/// Verifies the drafts of a batch under an exact rule.
#[pyfunction]
#[pyo3(signature = (logits, dtype, row_ptr, tokens, parents, rule, temperature, top_k, top_p, min_p, accept_coins, emit_coins, draft_probs = None, draft_rows = None, draft_ids = None, draft_ptr = None, one_hot = false))]
#[allow(clippy::too_many_arguments, reason = "the array interface of one call; specrs.verify is the one for people")]
fn verify<'py>(
    py: Python<'py>,
    logits: Bound<'py, PyAny>,
    dtype: &str,
    row_ptr: PyReadonlyArray1<'py, i64>,
    tokens: PyReadonlyArray1<'py, u32>,
    parents: PyReadonlyArray1<'py, i32>,
    rule: &str,
    temperature: PyReadonlyArray1<'py, f32>,
    top_k: PyReadonlyArray1<'py, i32>,
    top_p: PyReadonlyArray1<'py, f32>,
    min_p: PyReadonlyArray1<'py, f32>,
    accept_coins: PyReadonlyArray1<'py, f64>,
    emit_coins: PyReadonlyArray1<'py, f64>,
    draft_probs: Option<Bound<'py, PyAny>>,
    draft_rows: Option<PyReadonlyArray1<'py, i64>>,
    draft_ids: Option<PyReadonlyArray1<'py, u32>>,
    draft_ptr: Option<PyReadonlyArray1<'py, i64>>,
    one_hot: bool,
) -> PyResult<VerdictArrays<'py>> {
    let array = LogitArray::new(py, &logits, dtype)?;
    let logit_rows = array.rows(py)?;
    let sampling = sampling(py, &temperature, &top_k, &top_p, &min_p)?;
    let law_arrays = LawArrays::new(py, draft_probs, draft_rows, draft_ids, draft_ptr, one_hot)?;
    let law_rows = law_arrays.rows(py)?;
    let law = law_arrays.law(py, &law_rows)?;
    let (row_ptr, tokens) = (slice(py, "row_ptr", &row_ptr)?, slice(py, "tokens", &tokens)?);
    let parents = slice(py, "parents", &parents)?;
    let coins =
        Coins { accept: slice(py, "accept_coins", &accept_coins)?, emit: slice(py, "emit_coins", &emit_coins)? };
    let law = || law.ok_or_else(|| invalid(py, &format!("rule '{rule}' needs the law each token was drawn from")));
    let rule = match rule {
        "greedy_or_fixed" => Rule::GreedyOrFixed,
        "chain" => Rule::Chain(law()?),
        "block" => Rule::Block(law()?),
        "specinfer" => Rule::Siblings(law()?, Replacement::With),
        "without_replacement" => Rule::Siblings(law()?, Replacement::Without),
        "spectr" => Rule::SpecTr(law()?),
        _ => {
            let known = "'greedy_or_fixed', 'chain', 'block', 'specinfer', 'without_replacement' or 'spectr'";
            return Err(invalid(py, &format!("rule must be {known}, got '{rule}'")));
        }
    };
    let verdict = enter(py, || {
        let batch = Batch::new(logit_rows.view(), row_ptr, tokens, parents)?;
        verify_batch(&batch, &sampling, &rule, coins)
    })?;
    Ok(verdict_arrays(py, verdict).0)
}

/// Verifies the drafts of a batch under a relaxed rule.
#[pyfunction]
#[pyo3(signature = (logits, dtype, row_ptr, tokens, parents, rule, knobs, temperature, top_k, top_p, min_p, accept_coins, emit_coins, draft_probs = None, draft_rows = None, draft_ids = None, draft_ptr = None, one_hot = false, beyond_support = false, budget = None))]
#[allow(clippy::too_many_arguments, reason = "the array interface of one call; specrs.verify is the one for people")]
fn verify_relaxed<'py>(
    py: Python<'py>,
    logits: Bound<'py, PyAny>,
    dtype: &str,
    row_ptr: PyReadonlyArray1<'py, i64>,
    tokens: PyReadonlyArray1<'py, u32>,
    parents: PyReadonlyArray1<'py, i32>,
    rule: &str,
    knobs: PyReadonlyArray1<'py, f32>,
    temperature: PyReadonlyArray1<'py, f32>,
    top_k: PyReadonlyArray1<'py, i32>,
    top_p: PyReadonlyArray1<'py, f32>,
    min_p: PyReadonlyArray1<'py, f32>,
    accept_coins: PyReadonlyArray1<'py, f64>,
    emit_coins: PyReadonlyArray1<'py, f64>,
    draft_probs: Option<Bound<'py, PyAny>>,
    draft_rows: Option<PyReadonlyArray1<'py, i64>>,
    draft_ids: Option<PyReadonlyArray1<'py, u32>>,
    draft_ptr: Option<PyReadonlyArray1<'py, i64>>,
    one_hot: bool,
    beyond_support: bool,
    budget: Option<PyReadonlyArray1<'py, f64>>,
) -> PyResult<(VerdictArrays<'py>, Array1<'py, f64>)> {
    let array = LogitArray::new(py, &logits, dtype)?;
    let logit_rows = array.rows(py)?;
    let sampling = sampling(py, &temperature, &top_k, &top_p, &min_p)?;
    let law_arrays = LawArrays::new(py, draft_probs, draft_rows, draft_ids, draft_ptr, one_hot)?;
    let law_rows = law_arrays.rows(py)?;
    let law = law_arrays.law(py, &law_rows)?;
    let (row_ptr, tokens) = (slice(py, "row_ptr", &row_ptr)?, slice(py, "tokens", &tokens)?);
    let parents = slice(py, "parents", &parents)?;
    let coins =
        Coins { accept: slice(py, "accept_coins", &accept_coins)?, emit: slice(py, "emit_coins", &emit_coins)? };
    let budget = budget.as_ref().map(|b| slice(py, "budget", b)).transpose()?;
    let knobs = slice(py, "knobs", &knobs)?;
    let relaxed = match (rule, knobs) {
        ("ensemble", target_weight) => Relaxed::Ensemble { target_weight },
        ("lenience", &[lenience]) => Relaxed::Lenience(lenience),
        ("typical", &[epsilon, delta]) => Relaxed::Typical { epsilon, delta },
        ("top_k", &[k]) if k.fract() == 0.0 && k >= 1.0 => Relaxed::TopK(k as u32),
        ("cascade", &[alpha]) => Relaxed::Cascade(alpha),
        ("fuzzy_total_variation", &[threshold]) => Relaxed::Fuzzy(Divergence::TotalVariation, threshold),
        ("fuzzy_jensen_shannon", &[threshold]) => Relaxed::Fuzzy(Divergence::JensenShannon, threshold),
        ("fuzzy_kullback_leibler", &[threshold]) => Relaxed::Fuzzy(Divergence::KullbackLeibler, threshold),
        _ => return Err(invalid(py, &format!("no relaxed rule '{rule}' with knobs {knobs:?}"))),
    };
    let draft = law.unwrap_or(DraftLaw::OneHot);
    let rule = Rule::Relaxed { rule: relaxed, draft, beyond_support, budget };
    let verdict = enter(py, || {
        let batch = Batch::new(logit_rows.view(), row_ptr, tokens, parents)?;
        verify_batch(&batch, &sampling, &rule, coins)
    })?;
    Ok(verdict_arrays(py, verdict))
}

/// The accept and emit coins of every row of a round.
#[pyfunction]
fn round_coins<'py>(
    py: Python<'py>,
    seeds: PyReadonlyArray1<'py, u64>,
    requests: PyReadonlyArray1<'py, u32>,
    positions: PyReadonlyArray1<'py, u32>,
    row_ptr: PyReadonlyArray1<'py, i64>,
    depths: PyReadonlyArray1<'py, i32>,
) -> PyResult<(Array1<'py, f64>, Array1<'py, f64>)> {
    let (seeds, requests) = (slice(py, "seeds", &seeds)?, slice(py, "requests", &requests)?);
    let (positions, row_ptr) = (slice(py, "positions", &positions)?, slice(py, "row_ptr", &row_ptr)?);
    let depths = slice(py, "depths", &depths)?;
    let keys = specrs::verify::RoundKeys { seeds, requests, positions, row_ptr, depths };
    let (accept, emit) = enter(py, || specrs::verify::round_coins(&keys))?;
    Ok((accept.into_pyarray(py), emit.into_pyarray(py)))
}

/// Draws one token per row, and the law it was drawn from.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the array interface of one call")]
fn draw<'py>(
    py: Python<'py>,
    logits: Bound<'py, PyAny>,
    dtype: &str,
    temperature: PyReadonlyArray1<'py, f32>,
    top_k: PyReadonlyArray1<'py, i32>,
    top_p: PyReadonlyArray1<'py, f32>,
    min_p: PyReadonlyArray1<'py, f32>,
    coins: PyReadonlyArray1<'py, f64>,
    with_probs: bool,
) -> PyResult<(Array1<'py, u32>, Option<Array2<'py, f32>>)> {
    let array = LogitArray::new(py, &logits, dtype)?;
    let logit_rows = array.rows(py)?;
    let sampling = sampling(py, &temperature, &top_k, &top_p, &min_p)?;
    let coins = slice(py, "coins", &coins)?;
    let shape: (usize, usize) = logits.getattr("shape")?.extract()?;
    let probs = with_probs.then(|| PyArray2::<f32>::zeros(py, shape, false));
    let mut writable: Option<PyReadwriteArray2<'_, f32>> = probs.as_ref().map(PyArrayMethods::readwrite);
    let output = match &mut writable {
        None => None,
        Some(array) => Some(array.as_slice_mut().map_err(|_| invalid(py, "the output must be contiguous"))?),
    };
    let drawn = enter(py, || draw_rows(logit_rows.view(), &sampling, coins, output))?;
    drop(writable);
    Ok((drawn.into_pyarray(py), probs))
}

/// Log-probabilities of given tokens at given rows.
#[pyfunction]
fn log_probs<'py>(
    py: Python<'py>,
    logits: Bound<'py, PyAny>,
    dtype: &str,
    rows: PyReadonlyArray1<'py, i64>,
    tokens: PyReadonlyArray1<'py, u32>,
) -> PyResult<Array1<'py, f32>> {
    let array = LogitArray::new(py, &logits, dtype)?;
    let logit_rows = array.rows(py)?;
    let (rows, tokens) = (slice(py, "rows", &rows)?, slice(py, "tokens", &tokens)?);
    let values = enter(py, || specrs::verify::log_probs(logit_rows.view(), rows, tokens))?;
    Ok(values.into_pyarray(py))
}

/// The `k` largest log-probabilities of given rows.
#[pyfunction]
fn top_log_probs<'py>(
    py: Python<'py>,
    logits: Bound<'py, PyAny>,
    dtype: &str,
    rows: PyReadonlyArray1<'py, i64>,
    k: usize,
) -> PyResult<(Array2<'py, u32>, Array2<'py, f32>)> {
    let array = LogitArray::new(py, &logits, dtype)?;
    let logit_rows = array.rows(py)?;
    let rows = slice(py, "rows", &rows)?;
    let (ids, values) = enter(py, || specrs::verify::top_log_probs(logit_rows.view(), rows, k))?;
    let shape = [rows.len(), k];
    Ok((ids.into_pyarray(py).reshape(shape)?, values.into_pyarray(py).reshape(shape)?))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(verify, m)?)?;
    m.add_function(wrap_pyfunction!(verify_relaxed, m)?)?;
    m.add_function(wrap_pyfunction!(round_coins, m)?)?;
    m.add_function(wrap_pyfunction!(draw, m)?)?;
    m.add_function(wrap_pyfunction!(log_probs, m)?)?;
    m.add_function(wrap_pyfunction!(top_log_probs, m)?)
}
