//! A round's requests and its draft, as they cross from Python: copied and checked.

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use specrs::policy::{DraftFacts, Mode, Round};

use crate::enter::invalid;

/// The requests of a round, as they cross from Python.
pub struct Requests {
    pub ids: Vec<u64>,
    modes: Vec<Mode>,
    drawn: Vec<bool>,
    context: usize,
}

impl Requests {
    pub fn new(
        py: Python<'_>,
        ids: Vec<u64>,
        temperatures: &[f32],
        drawn: Vec<bool>,
        context: usize,
    ) -> PyResult<Self> {
        if ids.len() != temperatures.len() || ids.len() != drawn.len() {
            let found = (ids.len(), temperatures.len(), drawn.len());
            return Err(invalid(py, &format!("ids, temperatures and drawn must have one length, got {found:?}")));
        }
        let modes = temperatures.iter().zip(&drawn).map(|(&t, &drawn)| Mode::of(drawn, t)).collect();
        Ok(Self { ids, modes, drawn, context })
    }

    pub fn round(&self) -> Round<'_> {
        Round { ids: &self.ids, modes: &self.modes, drawn: &self.drawn, context: self.context }
    }
}

pub struct Nodes {
    pub parents: Vec<i32>,
    confidence: Vec<f32>,
    node_ptr: Vec<usize>,
    sees_token: bool,
}

impl Nodes {
    pub fn new(
        py: Python<'_>,
        batch: usize,
        parents: &PyReadonlyArray1<'_, i32>,
        confidence: Option<&PyReadonlyArray1<'_, f32>>,
        node_ptr: &PyReadonlyArray1<'_, i64>,
        sees_token: bool,
    ) -> PyResult<Self> {
        let parents: Vec<i32> = parents.as_array().iter().copied().collect();
        let confidence: Vec<f32> = confidence.map_or_else(Vec::new, |c| c.as_array().iter().copied().collect());
        let ends = node_ptr.as_array();
        let rises = ends.iter().zip(ends.iter().skip(1)).all(|(a, b)| a <= b);
        if ends.len() != batch + 1 || ends[0] != 0 || ends[batch] != parents.len() as i64 || !rises {
            let message = format!("node_ptr must rise from 0 to {} over {batch} requests", parents.len());
            return Err(invalid(py, &message));
        }
        if !confidence.is_empty() && confidence.len() != parents.len() {
            let message = format!("confidence has {} values for {} nodes", confidence.len(), parents.len());
            return Err(invalid(py, &message));
        }
        let node_ptr: Vec<usize> = ends.iter().map(|&end| end as usize).collect();
        for pair in node_ptr.windows(2) {
            for (node, &parent) in parents[pair[0]..pair[1]].iter().enumerate() {
                if parent < -1 || parent >= node as i32 {
                    let message = format!("parent of node {node} must be -1 or an earlier node, got {parent}");
                    return Err(invalid(py, &message));
                }
            }
        }
        Ok(Self { parents, confidence, node_ptr, sees_token })
    }

    pub fn facts(&self) -> DraftFacts<'_> {
        DraftFacts {
            parents: &self.parents,
            confidence: &self.confidence,
            node_ptr: &self.node_ptr,
            sees_token: self.sees_token,
        }
    }
}
