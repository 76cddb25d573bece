//! Verification (`specrs::verify`).

use numpy::ndarray::Axis;
use numpy::{
    Element, IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use specrs::verify::{Batch, Coins, Logits, Rule, Sampling, draw as draw_rows, verify as verify_batch};

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

/// Path pointers, path, bonus and status of a batch.
type VerdictArrays<'py> = (Array1<'py, i64>, Array1<'py, i32>, Array1<'py, u32>, Array1<'py, u8>);

/// Verifies the drafts of a batch.
#[pyfunction]
#[pyo3(signature = (logits, dtype, row_ptr, tokens, parents, rule, temperature, top_k, top_p, min_p, accept_coins, emit_coins, draft_probs = None))]
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
) -> PyResult<VerdictArrays<'py>> {
    let array = LogitArray::new(py, &logits, dtype)?;
    let logit_rows = array.rows(py)?;
    let sampling = sampling(py, &temperature, &top_k, &top_p, &min_p)?;
    let draft = draft_probs.map(|d| typed::<f32>(py, "draft_probs", &d, "float32")).transpose()?;
    let draft_rows = draft.as_ref().map(|d| rows(py, "draft_probs", d)).transpose()?;
    let (row_ptr, tokens) = (slice(py, "row_ptr", &row_ptr)?, slice(py, "tokens", &tokens)?);
    let parents = slice(py, "parents", &parents)?;
    let coins =
        Coins { accept: slice(py, "accept_coins", &accept_coins)?, emit: slice(py, "emit_coins", &emit_coins)? };
    let rule = match (rule, &draft_rows) {
        ("greedy_or_fixed", _) => Rule::GreedyOrFixed,
        ("chain", Some(draft_probs)) => Rule::Chain { draft_probs },
        ("chain", None) => {
            return Err(invalid(py, "rule 'chain' needs draft_probs, the law each token was drawn from"));
        }
        _ => return Err(invalid(py, &format!("rule must be 'greedy_or_fixed' or 'chain', got '{rule}'"))),
    };
    let verdict = enter(py, || {
        let batch = Batch::new(logit_rows.view(), row_ptr, tokens, parents)?;
        verify_batch(&batch, &sampling, &rule, coins)
    })?;
    Ok((
        verdict.path_ptr.into_pyarray(py),
        verdict.path.into_pyarray(py),
        verdict.bonus.into_pyarray(py),
        verdict.status.into_pyarray(py),
    ))
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
    m.add_function(wrap_pyfunction!(round_coins, m)?)?;
    m.add_function(wrap_pyfunction!(draw, m)?)?;
    m.add_function(wrap_pyfunction!(log_probs, m)?)?;
    m.add_function(wrap_pyfunction!(top_log_probs, m)?)
}
