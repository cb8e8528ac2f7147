//! The file of `--out`: a line with a JSON object for each file, from which a later run continues.
//!
//! Every line names the file with its size and modification time, the model with its version, and `--top`. A run keeps
//! the lines of files that did not change. It removes those of files that it repeats, which failed or changed, and the
//! remainder of a line after an interrupt or a power cut. One run at a time uses the file.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::{clock, durable};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::InputFile;
use super::pdf::PdfFolder;

/// The beginning of every line.
const LINE_START: &[u8] = br#"{"file":""#;

/// A line of answers: the file, then the members of its answer.
#[derive(Debug, Serialize)]
pub struct ResultLine<'a> {
    pub file: &'a str,
    /// The state of the file, in the lines of `--out`.
    #[serde(flatten)]
    pub state: Option<&'a InputFileStamp>,
    #[serde(flatten)]
    pub answer: &'a Map<String, Value>,
}

/// The size and the time of a file, which show whether it has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InputFileStamp {
    file_bytes: u64,
    file_modified: String,
}

impl From<&Metadata> for InputFileStamp {
    fn from(metadata: &Metadata) -> Self {
        let modified = metadata.mtime().saturating_mul(1_000_000).saturating_add(metadata.mtime_nsec() / 1000);
        Self { file_bytes: metadata.len(), file_modified: clock::rfc3339_micros(modified) }
    }
}

/// The members of a line that decide whether a run keeps it.
#[derive(Debug, Deserialize)]
struct StoredResultLine<'a> {
    #[serde(borrow)]
    file: Cow<'a, str>,
    file_bytes: Option<u64>,
    file_modified: Option<String>,
    #[serde(borrow)]
    model_name: Cow<'a, str>,
    #[serde(borrow)]
    model_version: Cow<'a, str>,
    top: usize,
    error: Option<IgnoredAny>,
}

/// The origin of all answers of a results file.
#[derive(Debug, Clone)]
pub struct ResultsOrigin {
    pub model: ModelName,
    pub version: ModelVersion,
    /// The number of labels of an answer.
    pub top: usize,
}

impl ResultsOrigin {
    /// Adds itself to the members of a line.
    pub fn add_to(&self, line: &mut Map<String, Value>) {
        line.insert("model_name".into(), self.model.as_str().into());
        line.insert("model_version".into(), self.version.to_string().into());
        line.insert("top".into(), self.top.into());
    }
}

/// The open file, locked for this run.
#[derive(Debug)]
pub struct ResultsFile {
    path: PathBuf,
    file: File,
    /// The file that this one replaced, still locked: another run may have opened it before.
    replaced: Vec<File>,
}

/// The number of files with an answer from an earlier run.
pub type AnsweredFiles = usize;

impl ResultsFile {
    /// Opens the file for answers of this origin to `inputs`, and removes from `inputs` the files that it has answers
    /// of, and that have their PDF among `pdfs`. Fails when it is another kind of file, has answers of another origin, or
    /// another run writes it.
    pub fn open(
        path: &Path,
        origin: &ResultsOrigin,
        inputs: &mut Vec<InputFile>,
        pdfs: Option<&PdfFolder>,
    ) -> anyhow::Result<(Self, AnsweredFiles)> {
        // A link stays a link when the file behind it is replaced.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let cannot_open = || format!("cannot open {}", path.display());
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            bail!("{} is not a regular file: --out needs one, to go on after an interrupt", path.display());
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path).with_context(cannot_open)?;
        lock(&file, &path)?;

        // A file that is named twice has one line.
        let mut named = HashSet::with_capacity(inputs.len());
        inputs.retain(|input| named.insert(input.path.clone()));
        // In JSON, several names that are not UTF-8 could become the same name.
        for input in inputs.iter_mut().filter(|input| input.path.to_str().is_none()) {
            input.problem =
                Some("the name is not UTF-8, and a line of --out cannot name it: rename the file".to_owned());
        }

        let mut scan = ResultsScan::new(&path, origin, inputs, pdfs);
        let length = scan.read(BufReader::new(&file))?;
        let ResultsScan { is_done, removed, .. } = scan;
        let done = is_done.iter().filter(|is_done| **is_done).count();
        let mut is_done = is_done.into_iter();
        inputs.retain(|_| !is_done.next().unwrap_or(false));

        let mut results = Self { path, file, replaced: Vec::new() };
        match removed.as_slice() {
            [] => {}
            [last] if last.end == length => results.file.set_len(last.start)?,
            _ => results.rewrite(&removed).with_context(|| format!("cannot rewrite {}", results.path.display()))?,
        }
        Ok((results, done))
    }

    /// Writes a line, in one piece.
    pub fn write(&mut self, line: &ResultLine<'_>) -> anyhow::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Makes the lines survive a power cut.
    pub fn sync(&self) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| format!("cannot write to {}", self.path.display()))
    }

    /// Replaces the file by one without the bytes `removed`, at once.
    fn rewrite(&mut self, removed: &[Range<u64>]) -> anyhow::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = self.path.with_file_name(name);
        let written = self.copy_without(removed, &temporary);
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        self.replaced.push(std::mem::replace(&mut self.file, written?));
        Ok(())
    }

    fn copy_without(&self, removed: &[Range<u64>], temporary: &Path) -> anyhow::Result<File> {
        let file = OpenOptions::new().append(true).create_new(true).open(temporary)?;
        lock(&file, temporary)?;
        let before = self.file.metadata()?;
        // Another owner is kept where this user may give files away.
        let _ = std::os::unix::fs::fchown(&file, Some(before.uid()), Some(before.gid()));
        file.set_permissions(before.permissions())?;

        let mut target = BufWriter::new(&file);
        let kept = |from: u64, to: u64| -> io::Result<io::Take<&File>> {
            let mut source = &self.file;
            source.seek(SeekFrom::Start(from))?;
            Ok(source.take(to - from))
        };
        let mut from = 0;
        for gap in removed {
            io::copy(&mut kept(from, gap.start)?, &mut target)?;
            from = gap.end;
        }
        io::copy(&mut kept(from, before.len().max(from))?, &mut target)?;
        target.flush()?;
        drop(target);

        file.sync_all()?;
        durable::rename(temporary, &self.path)?;
        Ok(file)
    }
}

fn lock(file: &File, path: &Path) -> anyhow::Result<()> {
    let is_current = || path.metadata().is_ok_and(|now| file.metadata().is_ok_and(|mine| mine.ino() == now.ino()));
    match file.try_lock() {
        Ok(()) if is_current() => Ok(()),
        // Another run has replaced the file since it was opened.
        Ok(()) | Err(TryLockError::WouldBlock) => bail!("another run of ledge infer writes {}", path.display()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {} against a second run", path.display()))
        }
    }
}

/// A reading of the lines of earlier runs.
struct ResultsScan<'a> {
    path: &'a Path,
    origin: &'a ResultsOrigin,
    version: String,
    inputs: &'a [InputFile],
    pdfs: Option<&'a PdfFolder>,
    by_name: HashMap<Cow<'a, str>, usize>,
    /// The inputs that need no call.
    is_done: Vec<bool>,
    /// The places of lines to remove, ascending and apart from one another.
    removed: Vec<Range<u64>>,
}

impl<'a> ResultsScan<'a> {
    fn new(path: &'a Path, origin: &'a ResultsOrigin, inputs: &'a [InputFile], pdfs: Option<&'a PdfFolder>) -> Self {
        // A name that is not UTF-8 has lines of errors only, under a name that may be the one of another file.
        let (named, nameless): (Vec<_>, Vec<_>) =
            inputs.iter().enumerate().partition(|(_, input)| input.path.to_str().is_some());
        let by_name = nameless.into_iter().chain(named).map(|(at, input)| (input.path.to_string_lossy(), at)).collect();
        let is_done = vec![false; inputs.len()];
        Self { path, origin, version: origin.version.to_string(), inputs, pdfs, by_name, is_done, removed: Vec::new() }
    }

    /// Reads all lines; returns their length.
    fn read(&mut self, mut source: impl BufRead) -> anyhow::Result<u64> {
        let (mut line, mut start) = (Vec::new(), 0);
        for number in 1.. {
            line.clear();
            let length = source.read_until(b'\n', &mut line)? as u64;
            if length == 0 {
                break;
            }
            if !self.keeps(&line, number)? {
                match self.removed.last_mut() {
                    Some(last) if last.end == start => last.end += length,
                    _ => self.removed.push(start..start + length),
                }
            }
            start += length;
        }
        Ok(start)
    }

    /// True for a line that stays.
    fn keeps(&mut self, line: &[u8], number: u64) -> anyhow::Result<bool> {
        let path = self.path.display();
        let written: StoredResultLine<'_> = match serde_json::from_slice(line) {
            Ok(written) if line.ends_with(b"\n") => written,
            Err(error) if !error.is_data() && is_torn(line) => return Ok(false),
            Ok(_) if is_torn(line) => return Ok(false),
            _ => bail!(
                "line {number} of {path} was not written by ledge infer --out, so nothing is added to it: name \
                 another file, or remove that line"
            ),
        };
        let ResultsOrigin { model, top, .. } = self.origin;
        if written.model_name != model.as_str() || written.model_version != self.version.as_str() {
            bail!(
                "{path} has answers of version {} of the model '{}', and this run would add those of version {} of \
                 '{model}': name another file, or use --version",
                written.model_version,
                written.model_name,
                self.version,
            );
        }
        if written.top != *top {
            bail!(
                "{path} has answers with --top {}, and this run would add those with --top {top}: name another file, or \
                 use --top {0}",
                written.top
            );
        }

        // Lines of files that this run does not name stay as they are.
        let Some(&at) = self.by_name.get(&written.file) else { return Ok(true) };
        let (Some(input), Some(is_done)) = (self.inputs.get(at), self.is_done.get_mut(at)) else { return Ok(true) };
        let is_answer = written.error.is_none() && input.problem.is_none() && !*is_done;
        let now = || std::fs::metadata(&input.path).ok().map(|metadata| InputFileStamp::from(&metadata));
        let then = written.file_bytes.zip(written.file_modified);
        let then = then.map(|(file_bytes, file_modified)| InputFileStamp { file_bytes, file_modified });
        let has_pdf = || self.pdfs.is_none_or(|pdfs| pdfs.has(&input.path));
        let is_current = is_answer && then.is_some() && then == now() && has_pdf();
        *is_done |= is_current;
        Ok(is_current)
    }
}

/// True for an incomplete line: an interrupted write leaves its start without a newline, and a power cut may leave
/// zeros in place of a part. JSON never contains a zero byte.
fn is_torn(line: &[u8]) -> bool {
    if line.ends_with(b"\n") && !line.contains(&0) {
        return false;
    }
    let start = line.iter().position(|byte| *byte != 0).unwrap_or(line.len());
    let rest = line.get(start..).unwrap_or_default().trim_ascii_end();
    let rest = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    rest.starts_with(LINE_START) || LINE_START.starts_with(rest)
}

#[cfg(test)]
mod tests;
