//! Draft trees (`specrs::tree`): merging, pruning, and the layouts that engines take.

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArray3, PyArrayMethods};
use pyo3::prelude::*;
use specrs::tree::{self, DraftTree};
use specrs::{Error, Result};

use crate::arrays::{integers_of, tokens_of};
use crate::enter::{enter, invalid};

type TreeArrays<'py> =
    (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<f32>>);

pub fn floats_of(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let array = py.import("numpy")?.call_method1("asarray", (value, "float32"))?;
    let Ok(array) = array.cast::<PyArray1<f32>>() else {
        return Err(invalid(py, "probabilities must be a 1-D array of floats"));
    };
    Ok(array.readonly().as_array().iter().copied().collect())
}

pub fn parents_of(py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    let narrow = |&parent: &i64| {
        i32::try_from(parent).map_err(|_| invalid(py, &format!("parents must fit into int32, got {parent}")))
    };
    integers_of(py, "parents", value)?.iter().map(narrow).collect()
}

fn tree_of(
    py: Python<'_>,
    tokens: &Bound<'_, PyAny>,
    parents: &Bound<'_, PyAny>,
    confidence: &Bound<'_, PyAny>,
) -> PyResult<DraftTree> {
    let (tokens, parents) = (tokens_of(py, tokens)?, parents_of(py, parents)?);
    let confidence = floats_of(py, confidence)?;
    enter(py, || DraftTree::from_parts(tokens, parents, confidence))
}

fn arrays_of(py: Python<'_>, tree: DraftTree) -> TreeArrays<'_> {
    (
        tree.tokens().to_vec().into_pyarray(py),
        tree.parents().to_vec().into_pyarray(py),
        tree.depths().to_vec().into_pyarray(py),
        tree.confidence().to_vec().into_pyarray(py),
    )
}

/// Cuts flat arrays into rows.
fn rows_of<'a>(parents: &'a [i32], row_ptr: &'a [i64]) -> Result<impl Iterator<Item = &'a [i32]>> {
    let rises = row_ptr.is_sorted();
    if row_ptr.first() != Some(&0) || row_ptr.last() != Some(&(parents.len() as i64)) || !rises {
        return Err(Error::invalid(format!("row_ptr must rise from 0 to {}, got {row_ptr:?}", parents.len())));
    }
    Ok(row_ptr.windows(2).map(|ends| &parents[ends[0] as usize..ends[1] as usize]))
}

#[pyfunction]
fn tree_merge<'py>(
    py: Python<'py>,
    drafts: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>)>,
) -> PyResult<TreeArrays<'py>> {
    let trees = drafts
        .iter()
        .map(|(tokens, parents, conf)| tree_of(py, tokens, parents, conf))
        .collect::<PyResult<Vec<_>>>()?;
    let merged = enter(py, || Ok(tree::merge(&trees)))?;
    Ok(arrays_of(py, merged))
}

#[pyfunction]
fn tree_prune<'py>(
    py: Python<'py>,
    tokens: &Bound<'py, PyAny>,
    parents: &Bound<'py, PyAny>,
    confidence: &Bound<'py, PyAny>,
    budget: usize,
) -> PyResult<(TreeArrays<'py>, Bound<'py, PyArray1<i32>>)> {
    let tree = tree_of(py, tokens, parents, confidence)?;
    let (kept, nodes) = enter(py, || Ok(tree::prune(&tree, budget)))?;
    Ok((arrays_of(py, kept), nodes.into_pyarray(py)))
}

#[pyfunction]
fn tree_visibility<'py>(
    py: Python<'py>,
    parents: &Bound<'py, PyAny>,
    row_ptr: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let (parents, row_ptr) = (parents_of(py, parents)?, integers_of(py, "row_ptr", row_ptr)?);
    let (words, width) = enter(py, || {
        let longest = rows_of(&parents, &row_ptr)?.map(<[i32]>::len).max().unwrap_or(0);
        let width = (longest + 1).div_ceil(64);
        let mut words = Vec::with_capacity(parents.len() * width);
        for row in rows_of(&parents, &row_ptr)? {
            words.extend(tree::visibility(row, width)?.words);
        }
        Ok((words, width))
    })?;
    words.into_pyarray(py).reshape([parents.len(), width])
}

#[pyfunction]
fn tree_retrieve_indices<'py>(
    py: Python<'py>,
    parents: &Bound<'py, PyAny>,
    row_ptr: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyArray3<i32>>> {
    let (parents, row_ptr) = (parents_of(py, parents)?, integers_of(py, "row_ptr", row_ptr)?);
    let (padded, shape) = enter(py, || {
        let rows = rows_of(&parents, &row_ptr)?.map(tree::retrieve_indices).collect::<Result<Vec<_>>>()?;
        let width = rows.iter().map(|(_, width)| *width).max().unwrap_or(1);
        let leaves = rows.iter().map(|(paths, width)| paths.len() / width).max().unwrap_or(1);
        let mut padded = vec![-1; rows.len() * leaves * width];
        for (row, (paths, own_width)) in rows.iter().enumerate() {
            for (leaf, path) in paths.chunks(*own_width).enumerate() {
                padded[(row * leaves + leaf) * width..][..*own_width].copy_from_slice(path);
            }
        }
        Ok((padded, [rows.len(), leaves, width]))
    })?;
    padded.into_pyarray(py).reshape(shape)
}

type LinkArrays<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

#[pyfunction]
fn tree_links<'py>(
    py: Python<'py>,
    parents: &Bound<'py, PyAny>,
    row_ptr: &Bound<'py, PyAny>,
) -> PyResult<LinkArrays<'py>> {
    let (parents, row_ptr) = (parents_of(py, parents)?, integers_of(py, "row_ptr", row_ptr)?);
    let (child, sibling) = enter(py, || {
        let (mut child, mut sibling) = (Vec::new(), Vec::new());
        for row in rows_of(&parents, &row_ptr)? {
            let links = tree::links(row)?;
            child.extend(links.first_child);
            sibling.extend(links.next_sibling);
        }
        Ok((child, sibling))
    })?;
    Ok((child.into_pyarray(py), sibling.into_pyarray(py)))
}

type PaddedArrays<'py> = (Bound<'py, PyArray2<i32>>, Bound<'py, PyArray1<i32>>);

#[pyfunction]
#[pyo3(signature = (tokens, row_ptr, width, fill = -1), text_signature = "(tokens, row_ptr, width, fill=-1)")]
fn pad_drafts<'py>(
    py: Python<'py>,
    tokens: &Bound<'py, PyAny>,
    row_ptr: &Bound<'py, PyAny>,
    width: usize,
    fill: i32,
) -> PyResult<PaddedArrays<'py>> {
    let (tokens, row_ptr) = (tokens_of(py, tokens)?, integers_of(py, "row_ptr", row_ptr)?);
    let (padded, lengths) = enter(py, || tree::pad_tokens(&tokens, &row_ptr, width, fill))?;
    let rows = lengths.len();
    Ok((padded.into_pyarray(py).reshape([rows, width])?, lengths.into_pyarray(py)))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(tree_merge, m)?)?;
    m.add_function(wrap_pyfunction!(tree_prune, m)?)?;
    m.add_function(wrap_pyfunction!(tree_visibility, m)?)?;
    m.add_function(wrap_pyfunction!(tree_retrieve_indices, m)?)?;
    m.add_function(wrap_pyfunction!(tree_links, m)?)?;
    m.add_function(wrap_pyfunction!(pad_drafts, m)?)
}
