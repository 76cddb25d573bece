//! A history on disk: a folder of segment files and a manifest that names them. Readers map the files; writers take a
//! lock, write new files beside the old ones, and replace the manifest in one rename.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{remove_file, replace_file};
use super::segment::Segment;
use super::segment_file::{Check, Fingerprint, open_segment, write_segment};
use crate::error::{Error, ErrorKind, Result};

const MANIFEST: &str = "manifest";
const LOCK: &str = "lock";
const TITLE: &str = "specrs cache store 1";

/// What the manifest says of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// File name within the store.
    pub name: String,
    /// Tokens, separators left out.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
    /// Size of the file.
    pub bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Manifest {
    fingerprint: Fingerprint,
    entries: Vec<Entry>,
}

/// A store of finished documents that several processes may read, and one at a time may write.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    fingerprint: Fingerprint,
}

fn io_at(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()))
}

impl Store {
    /// Makes an empty store; the folder is made if it is missing.
    ///
    /// # Errors
    /// If there is a store already, or the system refuses.
    pub fn create(folder: &Path, fingerprint: Fingerprint) -> Result<Self> {
        fs::create_dir_all(folder).map_err(io_at(folder))?;
        let store = Self { folder: folder.to_owned(), fingerprint };
        let lock = store.lock()?;
        if folder.join(MANIFEST).exists() {
            return Err(Error::invalid(format!("{} is a cache store already; add to it instead", folder.display())));
        }
        store.write_manifest(&Manifest { fingerprint: store.fingerprint.clone(), entries: Vec::new() })?;
        drop(lock);
        Ok(store)
    }

    /// Opens a store; with a known `fingerprint` that of the store must be equal or unknown.
    ///
    /// # Errors
    /// If there is none, it is damaged, or its tokenizer is another.
    pub fn open(folder: &Path, fingerprint: &Fingerprint) -> Result<Self> {
        let mut store = Self { folder: folder.to_owned(), fingerprint: Fingerprint::default() };
        let manifest = store.read_manifest()?;
        fingerprint.check(&manifest.fingerprint, folder)?;
        store.fingerprint = manifest.fingerprint;
        Ok(store)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The tokenizer's fingerprint.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// What the store holds now, oldest first.
    ///
    /// # Errors
    /// If the manifest is damaged or the system refuses.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        Ok(self.read_manifest()?.entries)
    }

    /// Maps all segments, oldest first.
    ///
    /// # Errors
    /// If a file is missing, damaged or foreign, or the system refuses.
    pub fn segments(&self, check: Check) -> Result<Vec<Arc<Segment>>> {
        // A merge of another process may remove files between the reading of the manifest and their opening; then the
        // manifest names others by now.
        let mut entries = self.entries()?;
        loop {
            let opened: Result<Vec<_>> = entries.iter().map(|entry| self.open_entry(entry, check)).collect();
            match opened {
                Err(error) if error.kind() == ErrorKind::Io => {
                    let now = self.entries()?;
                    if now == entries {
                        return Err(error);
                    }
                    entries = now;
                }
                other => return other,
            }
        }
    }

    fn open_entry(&self, entry: &Entry, check: Check) -> Result<Arc<Segment>> {
        let path = self.folder.join(&entry.name);
        let (segment, fingerprint) = open_segment(&path, check)?;
        self.fingerprint.check(&fingerprint, &path)?;
        if segment.tokens() != entry.tokens || segment.documents() != entry.documents {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{}: {} tokens in {} documents, the manifest says {} in {}",
                    path.display(),
                    segment.tokens(),
                    segment.documents(),
                    entry.tokens,
                    entry.documents
                ),
            ));
        }
        Ok(Arc::new(segment))
    }

    /// Adds segments as the newest.
    ///
    /// # Errors
    /// If the system refuses; the store is as before then.
    pub fn add(&self, segments: &[Arc<Segment>]) -> Result<()> {
        let lock = self.lock()?;
        let mut manifest = self.read_manifest()?;
        for segment in segments.iter().filter(|segment| segment.tokens() > 0) {
            let entry = self.write_entry(&manifest, segment)?;
            manifest.entries.push(entry);
        }
        self.write_manifest(&manifest)?;
        drop(lock);
        Ok(())
    }

    /// Makes one segment of all.
    ///
    /// # Errors
    /// If a file is damaged or the system refuses; the store is as before then.
    pub fn merge(&self) -> Result<()> {
        let lock = self.lock()?;
        let mut manifest = self.read_manifest()?;
        if manifest.entries.len() > 1 {
            let merged = Segment::merge(&self.segments(Check::Checksums)?)?;
            manifest.entries = vec![self.write_entry(&manifest, &merged)?];
            self.write_manifest(&manifest)?;
        }
        self.sweep(&manifest)?;
        drop(lock);
        Ok(())
    }

    /// Checks every file in full.
    ///
    /// # Errors
    /// If one is missing, damaged or foreign.
    pub fn verify(&self) -> Result<Vec<Entry>> {
        self.segments(Check::Full)?;
        self.entries()
    }

    /// Removes files of ours that the manifest does not name: inputs of a merge, leftovers of a crash.
    fn sweep(&self, manifest: &Manifest) -> Result<()> {
        for file in fs::read_dir(&self.folder).map_err(io_at(&self.folder))? {
            let file = file.map_err(io_at(&self.folder))?;
            let name = file.file_name().to_string_lossy().into_owned();
            let ours = name.starts_with("segment-") || name.starts_with(MANIFEST);
            if ours && name != MANIFEST && manifest.entries.iter().all(|entry| entry.name != name) {
                remove_file(&file.path()).map_err(io_at(&file.path()))?;
            }
        }
        Ok(())
    }

    fn write_entry(&self, manifest: &Manifest, segment: &Segment) -> Result<Entry> {
        let number = |entry: &Entry| u64::from_str_radix(entry.name.get(8..16).unwrap_or_default(), 16).unwrap_or(0);
        let next = manifest.entries.iter().map(number).max().unwrap_or(0) + 1;
        let name = format!("segment-{next:08x}");
        let path = self.folder.join(&name);
        write_segment(&path, segment, &self.fingerprint)?;
        let bytes = fs::metadata(&path).map_err(io_at(&path))?.len();
        Ok(Entry { name, tokens: segment.tokens(), documents: segment.documents(), bytes })
    }

    fn lock(&self) -> Result<File> {
        let path = self.folder.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io_at(&path))?;
        fs4::FileExt::lock(&file).map_err(io_at(&path))?;
        Ok(file)
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<()> {
        let text = manifest.to_text();
        replace_file(&self.folder.join(MANIFEST), |out| out.write_all(text.as_bytes()))
    }

    fn read_manifest(&self) -> Result<Manifest> {
        let path = self.folder.join(MANIFEST);
        let bytes = fs::read(&path).map_err(|error| {
            let none = error.kind() == std::io::ErrorKind::NotFound;
            let hint = if none { " (not a cache store; build one first)" } else { "" };
            Error::new(ErrorKind::Io, format!("{}: {error}{hint}", path.display()))
        })?;
        Manifest::parse(&bytes).map_err(|what| Error::new(ErrorKind::Corrupt, format!("{}: {what}", path.display())))
    }
}

impl Manifest {
    fn to_text(&self) -> String {
        let fingerprint = if self.fingerprint.as_str().is_empty() { "-" } else { self.fingerprint.as_str() };
        let mut text = format!("{TITLE}\ntokenizer {fingerprint}\n");
        for Entry { name, tokens, documents, bytes } in &self.entries {
            let line = format!("segment {name} {tokens} {documents} {bytes}\n");
            text.push_str(&line);
        }
        let sum = crc32fast::hash(text.as_bytes());
        text + &format!("checksum {sum:08x}\n")
    }

    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not text".to_owned())?;
        let title = text.lines().next().unwrap_or_default();
        if title != TITLE {
            return Err(format!("first line is {title:?}, expected {TITLE:?}"));
        }
        let sum_at = text.rfind("checksum ").ok_or("the checksum is missing")?;
        let wanted = format!("checksum {:08x}\n", crc32fast::hash(&bytes[..sum_at]));
        if text[sum_at..] != wanted {
            return Err(format!("checksum line is {:?}, expected {wanted:?}", &text[sum_at..]));
        }
        let mut manifest = Self::default();
        for line in text[..sum_at].lines().skip(1) {
            let fields: Vec<&str> = line.split(' ').collect();
            let unknown = || format!("line {line:?} is none that version 1 has");
            let number = |field: &str| field.parse::<u64>().map_err(|_| unknown());
            match fields[..] {
                ["tokenizer", "-"] => {}
                ["tokenizer", name] => {
                    manifest.fingerprint = Fingerprint::new(name).map_err(|error| error.to_string())?;
                }
                ["segment", name, tokens, documents, bytes]
                    if name.starts_with("segment-") && name.bytes().all(|b| b == b'-' || b.is_ascii_alphanumeric()) =>
                {
                    let (tokens, documents, bytes) = (number(tokens)?, number(documents)?, number(bytes)?);
                    manifest.entries.push(Entry { name: name.to_owned(), tokens, documents, bytes });
                }
                _ => return Err(unknown()),
            }
        }
        Ok(manifest)
    }
}
