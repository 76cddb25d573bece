//! The history on disk (`specrs::draft::Store`): class `CacheStore`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::prelude::*;
use specrs::draft::{Check, Entry, Fingerprint, Segment, Store};

use crate::arrays::documents_of;
use crate::draft::SuffixCache;
use crate::enter::enter;

/// Finished documents in a folder, shared by processes.
#[pyclass(frozen, module = "specrs._core")]
pub struct CacheStore {
    store: Store,
}

#[derive(IntoPyObject)]
enum Value {
    Text(String),
    Number(u64),
}

fn rows(entries: Vec<Entry>) -> Vec<BTreeMap<&'static str, Value>> {
    entries
        .into_iter()
        .map(|Entry { name, tokens, documents, bytes }| {
            BTreeMap::from([
                ("name", Value::Text(name)),
                ("tokens", Value::Number(tokens)),
                ("documents", Value::Number(documents)),
                ("bytes", Value::Number(bytes)),
            ])
        })
        .collect()
}

#[pymethods]
impl CacheStore {
    #[staticmethod]
    #[pyo3(signature = (path, fingerprint = ""))]
    fn create(py: Python<'_>, path: PathBuf, fingerprint: &str) -> PyResult<Self> {
        Ok(Self { store: enter(py, || Store::create(&path, Fingerprint::new(fingerprint)?))? })
    }

    #[staticmethod]
    #[pyo3(signature = (path, fingerprint = ""))]
    fn open(py: Python<'_>, path: PathBuf, fingerprint: &str) -> PyResult<Self> {
        Ok(Self { store: enter(py, || Store::open(&path, &Fingerprint::new(fingerprint)?))? })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.store.folder().to_owned()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        self.store.fingerprint().as_str()
    }

    fn add(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>, ptr: &Bound<'_, PyAny>) -> PyResult<()> {
        let (tokens, ptr) = documents_of(py, tokens, ptr)?;
        enter(py, || {
            let segment = Segment::from_documents(&tokens, &ptr)?;
            self.store.add(&[segment.into()])
        })
    }

    fn add_cache(&self, py: Python<'_>, cache: &SuffixCache) -> PyResult<()> {
        enter(py, || self.store.add(&cache.cache.segments()?))
    }

    fn merge(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, || self.store.merge())
    }

    fn inspect(&self, py: Python<'_>) -> PyResult<Vec<BTreeMap<&'static str, Value>>> {
        Ok(rows(enter(py, || self.store.entries())?))
    }

    fn verify(&self, py: Python<'_>) -> PyResult<Vec<BTreeMap<&'static str, Value>>> {
        Ok(rows(enter(py, || self.store.verify())?))
    }

    #[pyo3(signature = (cache, *, checksums = true))]
    fn load_into(&self, py: Python<'_>, cache: &SuffixCache, checksums: bool) -> PyResult<()> {
        let check = if checksums { Check::Checksums } else { Check::Quick };
        enter(py, || cache.cache.add_segments(self.store.segments(check)?))
    }
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<CacheStore>()
}
