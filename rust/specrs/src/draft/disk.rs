//! Changing files so that a crash at any moment leaves the old content or the new one under a real name.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, ErrorKind, Result};

/// A step that changes the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A temporary file is made.
    Create,
    /// A block is written to it; each block is two such steps, so that a crash between them leaves half of it.
    Write,
    /// Its content is made to last.
    Sync,
    /// It takes the place of the real file.
    Rename,
    /// The rename is made to last.
    SyncFolder,
    /// A file that nothing names any more is removed.
    Remove,
}

static WATCHER: OnceLock<fn(Step)> = OnceLock::new();

/// Has `watcher` called before every step that changes the disk, in this process and until it ends; the first one stays.
/// For tests that end the process at each of them.
pub fn watch_writes(watcher: fn(Step)) {
    WATCHER.get_or_init(|| watcher);
}

fn before(step: Step) {
    if let Some(watcher) = WATCHER.get() {
        watcher(step);
    }
}

/// A file whose blocks are written under the watcher's eyes.
pub struct Out(File);

impl Write for Out {
    fn write(&mut self, block: &[u8]) -> std::io::Result<usize> {
        before(Step::Write);
        if WATCHER.get().is_some() && block.len() > 1 {
            self.0.write_all(&block[..block.len() / 2])?;
            before(Step::Write);
            self.0.write_all(&block[block.len() / 2..])?;
            return Ok(block.len());
        }
        self.0.write(block)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Removes a file.
///
/// # Errors
/// If the system refuses.
pub fn remove_file(path: &Path) -> std::io::Result<()> {
    before(Step::Remove);
    fs::remove_file(path)
}

/// Removes a temporary file unless it was renamed.
struct Temporary(Option<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nothing to tell anyone: the write has failed already, and the name is one that no reader opens.
            drop(remove_file(path));
        }
    }
}

/// Writes a file under a temporary name, syncs it, and renames it; a crash leaves the old file or the new one.
///
/// # Errors
/// If the system refuses; the old file is untouched then.
pub fn replace_file(path: &Path, write: impl FnOnce(&mut BufWriter<Out>) -> std::io::Result<()>) -> Result<()> {
    let named = |error: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display()));
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut guard = Temporary(Some(temporary.clone()));
    before(Step::Create);
    let mut out = BufWriter::with_capacity(1 << 18, Out(File::create(&temporary).map_err(named)?));
    write(&mut out).map_err(named)?;
    let Out(file) = out.into_inner().map_err(|error| named(error.into_error()))?;
    before(Step::Sync);
    file.sync_all().map_err(named)?;
    before(Step::Rename);
    fs::rename(&temporary, path).map_err(named)?;
    guard.0 = None;
    before(Step::SyncFolder);
    sync_folder(path).map_err(named)
}

/// The rename itself must survive a crash too.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
