//! Arrays of u32 that are owned or lie in a mapped file; the only `unsafe` of cache drafting.
#![allow(clippy::cast_ptr_alignment, reason = "the alignment is checked when the words are made")]
#![allow(unsafe_code, reason = "mapping a file and reading it as u32 words")]

use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// A read-only array of u32.
#[derive(Clone, Debug)]
pub enum Words {
    /// In memory.
    Owned(Arc<Vec<u32>>),
    /// In a mapped file: first byte and number of words.
    Mapped(Arc<Mmap>, usize, usize),
}

impl From<Vec<u32>> for Words {
    fn from(words: Vec<u32>) -> Self {
        Self::Owned(Arc::new(words))
    }
}

impl Deref for Words {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        match self {
            Self::Owned(words) => words,
            // SAFETY: `mapped` checked that the range lies in the map and starts at a multiple of four (a map starts at
            // a page). Every bit pattern is a u32, and the map lives as long as `self`.
            Self::Mapped(map, start, len) => unsafe {
                std::slice::from_raw_parts(map.as_ptr().add(*start).cast::<u32>(), *len)
            },
        }
    }
}

impl Words {
    /// `len` words of a mapped file from byte `start` on.
    ///
    /// # Errors
    /// If the range does not lie in the file or is not aligned to four bytes.
    pub fn mapped(map: &Arc<Mmap>, start: usize, len: usize) -> Result<Self> {
        let end = len.checked_mul(4).and_then(|bytes| bytes.checked_add(start));
        if start.is_multiple_of(4) && end.is_some_and(|end| end <= map.len()) {
            return Ok(Self::Mapped(Arc::clone(map), start, len));
        }
        Err(Error::new(
            crate::ErrorKind::Corrupt,
            format!("{len} words from byte {start} do not lie in a file of {} bytes", map.len()),
        ))
    }
}

/// Maps a whole file for reading.
///
/// # Errors
/// If the system refuses.
pub fn map(file: &File) -> Result<Arc<Mmap>> {
    // SAFETY: a map is undefined behaviour if the file shrinks or changes under it. Store files are written under
    // another name, renamed when complete, never written again, and removed only by unlinking, which keeps maps valid.
    Ok(Arc::new(unsafe { Mmap::map(file)? }))
}
