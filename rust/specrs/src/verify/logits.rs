//! Logit rows in float32, float16 and bfloat16, read where they lie.

use crate::{Error, Result};

/// Logit rows of one format, each a slice of the same length (the vocabulary); rows may lie anywhere in memory.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// float32 rows.
    F32(&'a [&'a [f32]]),
    /// float16 rows, as bits.
    F16(&'a [&'a [u16]]),
    /// bfloat16 rows, as bits.
    Bf16(&'a [&'a [u16]]),
}

impl Logits<'_> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::F32(rows) => rows.len(),
            Self::F16(rows) | Self::Bf16(rows) => rows.len(),
        }
    }

    /// Length of every row; 0 without rows.
    ///
    /// # Errors
    /// Rows of different lengths, empty rows, or more tokens than ids can count.
    pub fn vocabulary(&self) -> Result<usize> {
        fn common<T>(rows: &[&[T]]) -> Result<usize> {
            let Some(first) = rows.first() else { return Ok(0) };
            if first.is_empty() || first.len() >= u32::MAX as usize {
                return Err(Error::invalid(format!(
                    "a logit row must have 1 to {} entries, got {}",
                    u32::MAX - 1,
                    first.len()
                )));
            }
            match rows.iter().find(|row| row.len() != first.len()) {
                None => Ok(first.len()),
                Some(odd) => Err(Error::invalid(format!(
                    "logit rows must have one length, got {} and {}",
                    first.len(),
                    odd.len()
                ))),
            }
        }
        match self {
            Self::F32(rows) => common(rows),
            Self::F16(rows) | Self::Bf16(rows) => common(rows),
        }
    }
}

/// Runs generic code on the rows of a [`Logits`], with its element type bound to a name.
macro_rules! with_rows {
    ($logits:expr, |$rows:ident: $element:ident| $body:expr) => {
        match $logits {
            $crate::verify::Logits::F32($rows) => {
                type $element = $crate::verify::element::F32;
                $body
            }
            $crate::verify::Logits::F16($rows) => {
                type $element = $crate::verify::element::F16;
                $body
            }
            $crate::verify::Logits::Bf16($rows) => {
                type $element = $crate::verify::element::Bf16;
                $body
            }
        }
    };
}
pub(crate) use with_rows;
