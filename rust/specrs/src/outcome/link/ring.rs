//! A ring of messages in shared memory, for one writing and one reading process.
//!
//! Three counters on cache lines of their own come first: bytes written, bytes read, and whether the reader sleeps. The
//! rest holds messages, each behind its length, padded to 8 bytes, in one piece.

#![allow(unsafe_code, reason = "memory shared with another process")]

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::{MmapOptions, MmapRaw};

use crate::error::{Error, ErrorKind, Result};

const LINE: usize = 64;
const HEAD: usize = 3 * LINE;
/// A length that says: go on at the beginning.
const WRAP: u64 = u64::MAX;

/// One direction of messages.
#[derive(Debug)]
pub struct Ring {
    map: MmapRaw,
    capacity: u64,
}

impl Ring {
    /// Maps a file that the other process maps too; its first use finds zeros.
    ///
    /// # Errors
    /// If the file cannot be mapped, or has no room for a message.
    pub fn new(file: &File) -> Result<Self> {
        let map = MmapOptions::new().map_raw(file)?;
        if map.len() < HEAD + LINE {
            return Err(Error::invalid(format!("a ring needs {} bytes at least, got {}", HEAD + LINE, map.len())));
        }
        let capacity = ((map.len() - HEAD) / 8 * 8) as u64;
        Ok(Self { map, capacity })
    }

    #[allow(clippy::cast_ptr_alignment, reason = "a map begins at a page, and lines are of 64 bytes")]
    fn counter(&self, line: usize) -> &AtomicU64 {
        // SAFETY: the map is aligned to pages and longer than three lines; both processes touch the counters as atomics
        // alone, and the reference does not outlive the map.
        unsafe { &*self.map.as_mut_ptr().add(line * LINE).cast::<AtomicU64>() }
    }

    fn written(&self) -> &AtomicU64 {
        self.counter(0)
    }

    fn read_up_to(&self) -> &AtomicU64 {
        self.counter(1)
    }

    /// Whether the reader sleeps and wants to be rung for: 1, or 0.
    pub fn asleep(&self) -> &AtomicU64 {
        self.counter(2)
    }

    /// Whether a message waits.
    pub fn has_message(&self) -> bool {
        self.written().load(Ordering::SeqCst) != self.read_up_to().load(Ordering::SeqCst)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let at = HEAD + at as usize;
        assert!(at + bytes.len() <= self.map.len(), "a message stays within the ring");
        // SAFETY: within the map, as just checked; the reader does not look at these bytes before `written` says so.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(at), bytes.len()) }
    }

    fn view(&self, at: u64, size: u64) -> Result<&[u8]> {
        if at.checked_add(size).is_none_or(|end| end > self.capacity) {
            let capacity = self.capacity;
            return Err(Error::new(
                ErrorKind::Lost,
                format!("a message of {size} bytes at byte {at} does not lie in a ring of {capacity}"),
            ));
        }
        // SAFETY: within the map, as just checked; the writer leaves these bytes alone until `read_up_to` passes them.
        Ok(unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(HEAD + at as usize), size as usize) })
    }

    fn length_at(&self, at: u64) -> Result<u64> {
        let word = self.view(at, 8)?;
        Ok(u64::from_ne_bytes(word.try_into().unwrap_or([0; 8])))
    }

    /// Appends a message made of `parts`, waiting for room.
    ///
    /// # Errors
    /// Of kind `Capacity` if the message could never fit, of kind `Late` if the reader makes no room in time.
    pub fn write(&self, parts: &[&[u8]], patience: Duration) -> Result<()> {
        let size: usize = parts.iter().map(|part| part.len()).sum();
        let padded = 8 + size.next_multiple_of(8) as u64;
        if padded + 8 > self.capacity / 2 {
            let most = (self.capacity / 2).saturating_sub(16);
            return Err(Error::new(
                ErrorKind::Capacity,
                format!("a message has {size} bytes, expected at most {most}"),
            ));
        }
        let written = self.written().load(Ordering::SeqCst);
        let mut at = written % self.capacity;
        let wrap = if at + padded > self.capacity { self.capacity - at } else { 0 };
        let started = Instant::now();
        while written.wrapping_sub(self.read_up_to().load(Ordering::SeqCst)) + wrap + padded > self.capacity {
            if started.elapsed() >= patience {
                return Err(Error::new(ErrorKind::Late, format!("no room for a message after {patience:?}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if wrap > 0 {
            self.put(at, &WRAP.to_ne_bytes());
            at = 0;
        }
        self.put(at, &(size as u64).to_ne_bytes());
        at += 8;
        for part in parts {
            self.put(at, part);
            at += part.len() as u64;
        }
        self.written().store(written.wrapping_add(wrap + padded), Ordering::SeqCst);
        Ok(())
    }

    /// Gives the oldest message not read yet to `take`, where it lies, and frees its place; None if there is none.
    ///
    /// # Errors
    /// What `take` returns, or of kind `Lost` if the ring was damaged.
    pub fn read<T>(&self, take: impl FnOnce(&[u8]) -> Result<T>) -> Result<Option<T>> {
        if !self.has_message() {
            return Ok(None);
        }
        let mut read = self.read_up_to().load(Ordering::SeqCst);
        let mut at = read % self.capacity;
        let mut size = self.length_at(at)?;
        if size == WRAP {
            read = read.wrapping_add(self.capacity - at);
            at = 0;
            size = self.length_at(0)?;
        }
        let made = take(self.view(at + 8, size)?);
        self.read_up_to().store(read.wrapping_add(8 + size.next_multiple_of(8)), Ordering::SeqCst);
        made.map(Some)
    }
}

/// The bytes of numbers, as they lie in memory.
pub fn bytes_of(values: &[f32]) -> &[u8] {
    // SAFETY: any f32 is four readable bytes, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first error")]
mod tests {
    use super::*;

    fn shared(size: u64) -> File {
        let path = std::env::temp_dir().join(format!("specrs-ring-{}-{size}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(size).unwrap();
        file
    }

    #[test]
    fn messages_go_round_whole_and_in_order() {
        let file = shared(HEAD as u64 + 256);
        let (ring, other) = (Ring::new(&file).unwrap(), Ring::new(&file).unwrap());
        let copy = |bytes: &[u8]| Ok(bytes.to_vec());
        assert_eq!(other.read(copy).unwrap(), None);
        for step in 0..200_u8 {
            let sent = vec![step; usize::from(step) * 7 % 90];
            let cut = sent.len().min(5);
            ring.write(&[&sent[..cut], &sent[cut..]], Duration::ZERO).unwrap();
            assert!(other.has_message());
            assert_eq!(other.read(copy).unwrap(), Some(sent));
        }
        let kind = |size: usize| ring.write(&[&vec![0; size]], Duration::ZERO).map_err(|e| e.kind());
        assert_eq!(kind(200), Err(ErrorKind::Capacity));
        assert_eq!(kind(100), Ok(()));
        assert_eq!(kind(90), Ok(()));
        assert_eq!(kind(90), Err(ErrorKind::Late));
    }

    #[test]
    fn a_damaged_length_is_refused() {
        let file = shared(HEAD as u64 + 512);
        let ring = Ring::new(&file).unwrap();
        ring.write(&[&[1, 2, 3]], Duration::ZERO).unwrap();
        ring.put(0, &9999_u64.to_ne_bytes());
        let error = ring.read(|bytes| Ok(bytes.len())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(Ring::new(&shared(100)).is_err());
    }
}
