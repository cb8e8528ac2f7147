//! The files of a job that runs: its input, its results and its journal, on a thread of their own, because a share may
//! hang.
//!
//! A result in a folder of the owner is written first, then the frame of the journal that says so. After `kill -9` between
//! the two the call is run again, and its result takes the place of the first: a file by its name, rows by their offset.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use bytes::Bytes;
use ledge_base::durable;
use ledge_base::open_folder::OpenFolder;
use ledge_base::telemetry::system::DiskSpace;
use ledge_base::time_id::TimeId;
use ledge_engine::pipeline::content::rows::RowsText;
use ledge_protocol::csv_rows::{CsvError, CsvRows};

use crate::config::JobsConfig;
use crate::journal::Journal;
use crate::spec::{CallRecord, JobKind, JobProgress, JobSource, JobSpec};
use crate::store::{InputPart, JobStore};

/// The bytes that are read of a table at a time.
const TABLE_STEP_BYTES: usize = 64 << 10;

/// The longest name of a file on the usual file systems, in bytes.
const FILE_NAME_BYTES_MAX: usize = 255;

/// The reason why a job stops.
#[derive(Debug)]
pub enum JobStop {
    /// It may go on later.
    Later(String),
    /// It cannot go on.
    Failed(String),
}

impl From<io::Error> for JobStop {
    fn from(error: io::Error) -> Self {
        Self::Later(error.to_string())
    }
}

/// A call to run.
#[derive(Debug)]
pub struct JobCall {
    pub item: u64,
    pub content: JobContent,
    /// Of a table: its bytes up to the end of this part.
    pub input_end: u64,
}

#[derive(Debug)]
pub enum JobContent {
    File {
        /// `None` for a file that came over HTTP.
        name: Option<OsString>,
        /// The file, or the reason why it cannot be read.
        bytes: Result<Bytes, String>,
    },
    Rows(RowsText),
}

/// The result of a call.
#[derive(Debug)]
pub struct CallResult {
    pub record: CallRecord,
    /// The name of its file.
    pub name: Option<OsString>,
    /// A line of JSON, or lines of CSV.
    pub content: Vec<u8>,
    /// The bytes of the header of CSV at its begin, which only the first result of a table keeps.
    pub header_bytes: usize,
}

/// See the module.
#[derive(Debug)]
pub struct JobWork {
    id: TimeId,
    spec: JobSpec,
    store: JobStore,
    config: JobsConfig,
    file_bytes_max: usize,
    open: Option<OpenJob>,
}

#[derive(Debug)]
struct OpenJob {
    journal: Journal,
    folders: Option<OwnerFolders>,
    names: Vec<OsString>,
    /// Of a job of files: the next one that has no end yet.
    next: u64,
    ended: BTreeSet<u64>,
    table: Option<TableReader>,
    /// The bytes of results of a table.
    output_end: u64,
}

#[derive(Debug)]
struct OwnerFolders {
    input: OpenFolder,
    output: OpenFolder,
}

/// A table, divided into parts. The same bytes have the same parts.
struct TableReader {
    source: Box<dyn Read + Send>,
    rest: Bytes,
    rows: CsvRows,
    read: u64,
    next: u64,
    is_over: bool,
}

impl std::fmt::Debug for TableReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableReader").field("read", &self.read).finish_non_exhaustive()
    }
}

impl JobWork {
    /// The work of a job. Nothing is opened yet.
    pub fn new(id: TimeId, spec: JobSpec, store: JobStore, config: JobsConfig, file_bytes_max: usize) -> Self {
        Self { id, spec, store, config, file_bytes_max, open: None }
    }

    /// Opens the files of the job. Returns its figures.
    pub fn open(&mut self) -> Result<JobProgress, JobStop> {
        self.open = None;
        let cipher = self.store.cipher(&self.id)?;
        let (mut progress, mut ended) = (JobProgress::default(), BTreeSet::new());
        let (mut output_end, mut input_end) = (0, 0);
        let journal = Journal::open(&self.store.journal(&self.id), cipher, |record| {
            progress.count(self.spec.kind, &record);
            ended.insert(record.item);
            (output_end, input_end) = (record.output_end, record.input_end);
        })?;
        let (folders, names) = match &self.spec.source {
            JobSource::Sent => (None, Vec::new()),
            JobSource::Folder { folder, out, .. } => {
                let input = self.open_folder(folder)?;
                let output = self.open_folder(out.as_ref().unwrap_or(folder))?;
                let names = names(&self.store.input(&self.id, InputPart::Files)?);
                (Some(OwnerFolders { input, output }), names)
            }
        };
        let table = match self.spec.kind {
            JobKind::Files => None,
            JobKind::Table => {
                let source = self.table_source(folders.as_ref(), &names)?;
                let mut table = TableReader::new(source);
                // The parts that have ended are read over.
                while table.next < ended.len() as u64 && table.next()?.is_some() {}
                if table.read < input_end {
                    return Err(JobStop::Failed("the table has become shorter".to_owned()));
                }
                Some(table)
            }
        };
        self.open = Some(OpenJob { journal, folders, names, next: 0, ended, table, output_end });
        Ok(progress)
    }

    fn open_folder(&self, path: &Path) -> Result<OpenFolder, JobStop> {
        let wrong = || JobStop::Failed(format!("{} is in no folder of jobs.folders any more", path.display()));
        let (root, rest) = self.config.folder_of(path).ok_or_else(wrong)?;
        open_below(root, rest).map_err(JobStop::from)
    }

    fn table_source(
        &self,
        folders: Option<&OwnerFolders>,
        names: &[OsString],
    ) -> Result<Box<dyn Read + Send>, JobStop> {
        let Some(folders) = folders else {
            return Ok(Box::new(Cursor::new(self.store.input(&self.id, InputPart::Sent)?)));
        };
        let name = names.first().ok_or_else(|| JobStop::Failed("it names no file".to_owned()))?;
        let (file, stamp) = folders.input.open_to_read(name)?;
        match &self.spec.source {
            JobSource::Folder { stamp: Some(then), .. } if *then != stamp => {
                Err(JobStop::Failed("the table has changed since the job was added".to_owned()))
            }
            _ => Ok(Box::<File>::new(file)),
        }
    }

    /// The next call; `None` when all have been returned.
    pub fn next_call(&mut self) -> Result<Option<JobCall>, JobStop> {
        let Self { open, store, id, spec, file_bytes_max, .. } = self;
        let open = open.as_mut().ok_or_else(|| JobStop::Later("it is not open".to_owned()))?;
        if let Some(table) = &mut open.table {
            let part = table.next()?;
            return Ok(part.map(|(item, rows, input_end)| JobCall {
                item,
                content: JobContent::Rows(rows),
                input_end,
            }));
        }
        while open.ended.contains(&open.next) {
            open.next += 1;
        }
        let item = open.next;
        if item >= spec.total {
            return Ok(None);
        }
        let content = match &open.folders {
            None => JobContent::File { name: None, bytes: Ok(store.input(id, InputPart::Sent)?.into()) },
            Some(folders) => {
                let index = usize::try_from(item).unwrap_or(usize::MAX);
                let Some(name) = open.names.get(index) else { return Ok(None) };
                let bytes = read_file(&folders.input, name, *file_bytes_max)?;
                JobContent::File { name: Some(name.clone()), bytes }
            }
        };
        open.next += 1;
        Ok(Some(JobCall { item, content, input_end: 0 }))
    }

    /// Writes the result of a call, and that it has ended. Returns the bytes that the job takes more.
    pub fn finish_call(&mut self, mut result: CallResult) -> Result<(CallRecord, u64), JobStop> {
        let free = DiskSpace::under(self.store.path())?.available_bytes;
        if free < self.config.min_free_mb << 20 {
            let wanted = self.config.min_free_mb;
            return Err(JobStop::Later(format!("the disk has less than {wanted} MiB free (jobs.min_free_mb)")));
        }
        let (id, kind) = (&self.id, self.spec.kind);
        let open = self.open.as_mut().ok_or_else(|| JobStop::Later("it is not open".to_owned()))?;
        if open.output_end > 0 {
            result.content.drain(..result.header_bytes.min(result.content.len()));
        }
        let kept: &[u8] = match &open.folders {
            None => &result.content,
            Some(folders) => {
                match kind {
                    JobKind::Files => {
                        let name = result_name(result.name.as_deref().unwrap_or_default(), result.record.item, id);
                        folders.output.replace(&name, &result.content)?;
                    }
                    JobKind::Table => {
                        let name = table_name(open.names.first(), id, true);
                        folders.output.extend(&name, open.output_end, &result.content)?;
                    }
                }
                &[]
            }
        };
        open.output_end += result.content.len() as u64;
        result.record.output_end = open.output_end;
        let before = open.journal.bytes();
        open.journal.append(&result.record, kept)?;
        open.ended.insert(result.record.item);
        let written = open.journal.bytes() - before;
        Ok((result.record, written))
    }

    /// Gives the results of a table their name. It may be called again.
    pub fn finish(&mut self) -> Result<(), JobStop> {
        let open = self.open.as_ref().ok_or_else(|| JobStop::Later("it is not open".to_owned()))?;
        let (Some(folders), JobKind::Table) = (&open.folders, self.spec.kind) else { return Ok(()) };
        if open.output_end == 0 {
            return Ok(());
        }
        let [part, whole] = [true, false].map(|is_part| table_name(open.names.first(), &self.id, is_part));
        match folders.output.rename(&part, &folders.output, &whole) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && folders.output.stamp(&whole).is_ok() => Ok(()),
            renamed => Ok(renamed?),
        }
    }
}

impl TableReader {
    fn new(source: Box<dyn Read + Send>) -> Self {
        Self { source, rest: Bytes::new(), rows: CsvRows::default(), read: 0, next: 0, is_over: false }
    }

    /// The next part, with its number and the bytes of the table up to its end.
    fn next(&mut self) -> Result<Option<(u64, RowsText, u64)>, JobStop> {
        let wrong = |error: CsvError| JobStop::Failed(error.to_string());
        while !self.is_over {
            let mut part = self.rows.read(&mut self.rest).map_err(wrong)?;
            if part.is_none() {
                let mut step = Vec::with_capacity(TABLE_STEP_BYTES);
                (&mut self.source).take(TABLE_STEP_BYTES as u64).read_to_end(&mut step)?;
                self.read += step.len() as u64;
                self.rest = step.into();
                if self.rest.is_empty() {
                    self.is_over = true;
                    part = self.rows.finish().map_err(wrong)?;
                }
            }
            if let Some(part) = part {
                let item = self.next;
                self.next += 1;
                return Ok(Some((item, part, self.read - self.rest.len() as u64)));
            }
        }
        Ok(None)
    }
}

/// Opens a folder below another without following a link.
pub fn open_below(root: &Path, rest: &Path) -> io::Result<OpenFolder> {
    rest.iter().try_fold(OpenFolder::open(root)?, |folder, name| folder.open_child(name))
}

/// The names of the files of a folder that a job reads, in their order. Hidden files and results of jobs are left out.
pub fn listed(folder: &OpenFolder) -> io::Result<Vec<OsString>> {
    let mut names: Vec<_> = folder.files()?.into_iter().map(|file| file.name).filter(|name| is_input(name)).collect();
    names.sort();
    Ok(names)
}

fn is_input(name: &OsStr) -> bool {
    let is_hidden = name.as_bytes().starts_with(b".");
    let text = name.to_string_lossy();
    let is_id = |part: &str| TimeId::parse(OsStr::new(part)).is_some();
    // `scan.png.20261201T111438123Z-1f3a9c2e.json`, and with a number.
    let is_result =
        text.rsplit('.').nth(1).is_some_and(|id| is_id(id) || id.rsplit_once('-').is_some_and(|(id, _)| is_id(id)));
    !is_hidden && !is_result
}

/// Names in their stored form.
pub fn stored_names<'a>(names: impl IntoIterator<Item = &'a OsStr>) -> Vec<u8> {
    let mut stored = Vec::new();
    for name in names {
        stored.extend_from_slice(name.as_bytes());
        stored.push(0);
    }
    stored
}

fn names(stored: &[u8]) -> Vec<OsString> {
    let names = stored.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| OsString::from_vec(name.to_vec())).collect()
}

/// Reads a file of a job. The inner error is one of that file alone.
fn read_file(folder: &OpenFolder, name: &OsStr, longest: usize) -> Result<Result<Bytes, String>, JobStop> {
    match folder.read(name, longest as u64) {
        Ok((Some(content), _)) if content.is_empty() => Ok(Err("it is empty".to_owned())),
        Ok((Some(content), _)) => Ok(Ok(content.into())),
        Ok((None, _)) => Ok(Err(format!("it has more than {longest} bytes (http.max_body_bytes)"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A folder without anything in it may be the place of a share that is not mounted.
            if folder.names()?.is_empty() {
                let path = folder.path().display();
                return Err(JobStop::Later(format!("{path} is empty: is its share mounted?")));
            }
            Ok(Err("it is not there any more".to_owned()))
        }
        Err(error) if durable::is_unwritable(&error) => Err(error.into()),
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// The name of the result of a file: its own, the id of the job, and `.json`. A long name is cut, and has a number.
fn result_name(name: &OsStr, item: u64, id: &TimeId) -> OsString {
    let ending = format!(".{id}.json");
    let mut result = name.to_owned();
    // The name of the temporary file is five bytes longer.
    if name.len() + ending.len() + 5 <= FILE_NAME_BYTES_MAX {
        result.push(ending);
    } else {
        let text = name.to_string_lossy();
        let begin = text.get(..text.floor_char_boundary(160)).unwrap_or_default();
        result = format!("{begin}.{id}-{item}.json").into();
    }
    result
}

/// The name of the results of a table, while they are written and then.
fn table_name(name: Option<&OsString>, id: &TimeId, is_part: bool) -> OsString {
    let text = name.map(|name| name.to_string_lossy()).unwrap_or_default();
    let begin = text.get(..text.floor_char_boundary(160)).unwrap_or_default();
    if is_part { format!(".{begin}.{id}.csv.part").into() } else { format!("{begin}.{id}.csv").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_named_after_their_file_and_are_no_inputs() {
        let id = TimeId::generate(1_796_123_678_123).unwrap();
        let short = result_name(OsStr::new("scan 1.png"), 0, &id);
        assert_eq!(short.to_str().unwrap(), format!("scan 1.png.{id}.json"));
        let [one, two] = [7, 8].map(|item| result_name(OsStr::new(&"é".repeat(120)), item, &id));
        assert!(one != two && one.len() <= 250 && !is_input(&one) && !is_input(&short));
        let table = "t.csv".into();
        assert!(!is_input(&table_name(Some(&table), &id, true)) && !is_input(&table_name(Some(&table), &id, false)));
        assert!(
            is_input(OsStr::new("a.json")) && is_input(OsStr::new("x.20261201.pdf")) && !is_input(OsStr::new(".a"))
        );
        let all = [OsStr::new("a\n"), OsStr::from_bytes(b"\xff")];
        assert_eq!(names(&stored_names(all)), all);
    }

    #[test]
    fn a_table_has_the_same_parts_at_each_reading_and_ends_at_its_length() {
        let text: String =
            std::iter::once("a,b\n".to_owned()).chain((0..1300).map(|row| format!("{row},x\n"))).collect();
        let parts = || {
            let mut table = TableReader::new(Box::new(Cursor::new(text.clone())));
            std::iter::from_fn(|| table.next().unwrap()).collect::<Vec<_>>()
        };
        let (first, again) = (parts(), parts());
        assert_eq!(first, again);
        assert_eq!(first.iter().map(|(_, rows, _)| rows.count()).collect::<Vec<_>>(), [512, 512, 276]);
        assert_eq!(first.last().unwrap().2, text.len() as u64);
        assert!(matches!(TableReader::new(Box::new(Cursor::new(b"a\n1,2\n"))).next(), Err(JobStop::Failed(_))));
    }

    #[test]
    fn no_link_is_followed_below_a_listed_folder() {
        let (root, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink(other.path(), root.path().join("a/link")).unwrap();
        assert!(open_below(root.path(), Path::new("a/b")).is_ok());
        assert!(open_below(root.path(), Path::new("a/link")).is_err());
    }
}
