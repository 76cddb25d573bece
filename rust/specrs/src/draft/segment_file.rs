//! One segment as a file: layout and checksums. The format is documented in `docs/cache_format.md`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::context::{SEPARATOR, order_key};
use super::disk::replace_file;
use super::segment::Segment;
use super::words::{Words, map};
use crate::error::{Error, ErrorKind, Result};

const MAGIC: [u8; 8] = *b"SPECRSG\x01";
const HEADER_BYTES: usize = 128;
const FINGERPRINT_BYTES: usize = 64;

/// What says that two stores mean the same text by the same ids: any string of at most 64 bytes, a hash of the
/// tokenizer by custom; empty when unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Checks and keeps a fingerprint.
    ///
    /// # Errors
    /// If it is longer than 64 bytes or holds control characters or spaces.
    pub fn new(text: &str) -> Result<Self> {
        if text.len() <= FINGERPRINT_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!(
            "a tokenizer fingerprint is at most {FINGERPRINT_BYTES} printable ASCII characters without spaces, got {text:?}"
        )))
    }

    /// The text of the fingerprint.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Refuses a fingerprint that differs, unless one of the two is unknown.
    ///
    /// # Errors
    /// If both are known and differ.
    pub fn check(&self, found: &Self, path: &Path) -> Result<()> {
        if self.0.is_empty() || found.0.is_empty() || self == found {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("{}: made with tokenizer {}, expected {}", path.display(), found.0, self.0),
        ))
    }
}

/// How much of a file is checked when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Header, sizes, and that every position lies in the text.
    Quick,
    /// All checksums too.
    Checksums,
    /// And that the order is a context order of the text.
    Full,
}

fn bytes_of(words: &[u32]) -> impl Iterator<Item = Vec<u8>> + '_ {
    words.chunks(1 << 14).map(|chunk| chunk.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn checksum(words: &[u32]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for bytes in bytes_of(words) {
        hasher.update(&bytes);
    }
    hasher.finalize()
}

fn header(segment: &Segment, fingerprint: &Fingerprint) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    let sizes = [segment.text.len() as u64, segment.order.len() as u64, segment.directory.len() as u64 / 2];
    for (at, size) in sizes.into_iter().chain([segment.documents]).enumerate() {
        out[8 + 8 * at..16 + 8 * at].copy_from_slice(&size.to_le_bytes());
    }
    for (at, part) in [&segment.directory, &segment.text, &segment.order].into_iter().enumerate() {
        out[40 + 4 * at..44 + 4 * at].copy_from_slice(&checksum(part).to_le_bytes());
    }
    out[52..52 + fingerprint.0.len()].copy_from_slice(fingerprint.0.as_bytes());
    let sum = crc32fast::hash(&out[..HEADER_BYTES - 4]);
    out[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Writes a segment.
///
/// # Errors
/// If the system refuses.
pub fn write_segment(path: &Path, segment: &Segment, fingerprint: &Fingerprint) -> Result<()> {
    let header = header(segment, fingerprint);
    replace_file(path, |out| {
        out.write_all(&header)?;
        for part in [&segment.directory, &segment.text, &segment.order] {
            for bytes in bytes_of(part) {
                out.write_all(&bytes)?;
            }
        }
        Ok(())
    })
}

/// Maps a segment and checks it.
///
/// # Errors
/// If the system refuses, or the file is foreign, damaged, or of another version; the message says which.
pub fn open_segment(path: &Path, check: Check) -> Result<(Segment, Fingerprint)> {
    let corrupt = |what: String| Error::new(ErrorKind::Corrupt, format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display())))?;
    let length = file.metadata()?.len();
    if length < HEADER_BYTES as u64 {
        return Err(corrupt(format!("{length} bytes are less than the header's {HEADER_BYTES}")));
    }
    let map = map(&file)?;
    let bytes = &map[..HEADER_BYTES];
    if bytes[..7] != MAGIC[..7] {
        return Err(corrupt("not a segment of a specrs cache".to_owned()));
    }
    if bytes[7] != MAGIC[7] {
        return Err(corrupt(format!("format version {}, expected {}", bytes[7], MAGIC[7])));
    }
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    if crc32fast::hash(&bytes[..HEADER_BYTES - 4]) != word(HEADER_BYTES - 4) {
        return Err(corrupt("the header's checksum does not fit".to_owned()));
    }
    if cfg!(target_endian = "big") {
        return Err(corrupt("segments are little-endian and this processor is not".to_owned()));
    }
    let [text_len, order_len, distinct, documents] = [long(8), long(16), long(24), long(32)];
    let words = text_len.checked_add(order_len).and_then(|sum| sum.checked_add(distinct.checked_mul(2)?));
    let wanted = words.and_then(|words| words.checked_mul(4)).and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64));
    if wanted != Some(length) || text_len > u64::from(u32::MAX) {
        return Err(corrupt(format!(
            "{length} bytes, expected {}",
            wanted.map_or("fewer".to_owned(), |n| n.to_string())
        )));
    }
    let name = bytes[52..52 + FINGERPRINT_BYTES].split(|&byte| byte == 0).next().unwrap_or_default();
    let fingerprint = Fingerprint::new(&String::from_utf8_lossy(name)).map_err(|error| corrupt(error.to_string()))?;
    let directory_at = HEADER_BYTES;
    let text_at = directory_at + 8 * distinct as usize;
    let order_at = text_at + 4 * text_len as usize;
    let directory = Words::mapped(&map, directory_at, 2 * distinct as usize)?;
    let text = Words::mapped(&map, text_at, text_len as usize)?;
    let order = Words::mapped(&map, order_at, order_len as usize)?;
    if check != Check::Quick {
        for (at, (name, part)) in
            [("directory", &directory), ("text", &text), ("order", &order)].into_iter().enumerate()
        {
            let found = checksum(part);
            if found != word(40 + 4 * at) {
                return Err(corrupt(format!(
                    "checksum of the {name} is {found:08x}, expected {:08x}",
                    word(40 + 4 * at)
                )));
            }
        }
    }
    check_bounds(&text, &order, &directory).map_err(corrupt)?;
    let segment = Segment::of_words(text, order, directory, documents);
    if check == Check::Full {
        check_order(&segment).map_err(corrupt)?;
    }
    Ok((segment, fingerprint))
}

/// What lookups rely on to stay within the arrays.
fn check_bounds(text: &[u32], order: &[u32], directory: &[u32]) -> std::result::Result<(), String> {
    let text_len = text.len() as u32;
    if let Some(&position) = order.iter().find(|&&position| position >= text_len) {
        return Err(format!("position {position} is outside the text of {text_len} tokens"));
    }
    let (tokens, starts) = directory.split_at(directory.len() / 2);
    let rising =
        tokens.is_sorted_by(|a, b| a < b) && starts.is_sorted() && starts.first().is_none_or(|&start| start == 0);
    if !rising || starts.last().is_some_and(|&start| start as usize > order.len()) {
        return Err("the directory does not rise".to_owned());
    }
    if text.last().is_some_and(|&token| token != SEPARATOR) {
        return Err("the last document is not ended".to_owned());
    }
    Ok(())
}

/// That `order` holds every position once, in context order, and the directory fits.
fn check_order(segment: &Segment) -> std::result::Result<(), String> {
    let text = segment.text();
    let separators = text.iter().filter(|&&token| token == SEPARATOR).count();
    if separators as u64 != segment.documents || segment.order.len() + separators != text.len() {
        return Err(format!("{separators} documents and {} positions do not fit the text", segment.order.len()));
    }
    let mut seen = vec![false; text.len()];
    for &position in segment.order() {
        if text[position as usize] == SEPARATOR || std::mem::replace(&mut seen[position as usize], true) {
            return Err(format!("position {position} is a separator or listed twice"));
        }
    }
    let mut rank = vec![0_u32; text.len()];
    for (place, &position) in segment.order().iter().enumerate() {
        rank[position as usize] = place as u32 + 1;
    }
    for pair in segment.order().windows(2) {
        // The token decides, then the order of the positions before, which the array itself holds.
        let key = |position: u32| {
            let before = position.checked_sub(1).map_or(0, |before| rank[before as usize]);
            (order_key(text[position as usize]), before)
        };
        if key(pair[0]) > key(pair[1]) {
            return Err(format!("positions {} and {} are out of order", pair[0], pair[1]));
        }
    }
    let (tokens, starts) = segment.directory.split_at(segment.directory.len() / 2);
    let mut place = 0;
    for (&token, &start) in tokens.iter().zip(starts) {
        if start as usize != place || segment.order.get(place).is_none_or(|&position| text[position as usize] != token)
        {
            return Err(format!("the directory's entry of token {token} does not fit"));
        }
        place += segment.order[place..].partition_point(|&position| text[position as usize] == token);
    }
    if place != segment.order.len() {
        return Err("the directory lacks a token".to_owned());
    }
    Ok(())
}
