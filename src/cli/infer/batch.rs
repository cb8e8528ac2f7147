//! A run over many files: a limited number of calls in flight, and files read ahead of them within a bound on the
//! memory.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use ledge_protocol::decode::ModelTarget;
use ledge_service::off_thread::blocking;
use tokio::sync::Semaphore;

use super::calls::{FileAnswer, ModelLocation};
use super::files::InputFile;
use super::lines;
use super::progress::InferProgress;
use super::results_file::InputFileStamp;
use super::stop::StopSignal;

/// The files that are read or wait to be written out, for each call in flight. A slow call delays the output of the
/// ones after it, and must not delay their calls.
const WINDOW_PER_CALL: usize = 8;
/// The most KiB of files in memory. A file of this size or more is the only one in memory.
const READ_KIB_MAX: u32 = 256 << 10;
/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// The needs of every call of a run.
pub struct FileCallBatch<'a> {
    pub caller: &'a ModelLocation,
    pub target: &'a ModelTarget,
    pub progress: &'a InferProgress,
    pub stop: &'a StopSignal,
    memory: Semaphore,
    calls: Semaphore,
    in_flight: usize,
}

/// A file with its answer.
pub struct AnsweredFile<'a> {
    pub path: &'a Path,
    /// The state of the file when it was read.
    pub state: Option<InputFileStamp>,
    pub answer: FileAnswer,
}

impl<'a> FileCallBatch<'a> {
    pub fn new(
        caller: &'a ModelLocation,
        target: &'a ModelTarget,
        in_flight: usize,
        progress: &'a InferProgress,
        stop: &'a StopSignal,
    ) -> Self {
        let memory = Semaphore::new(READ_KIB_MAX as usize);
        Self { caller, target, progress, stop, memory, calls: Semaphore::new(in_flight), in_flight }
    }

    /// The answers to all files, in the order of the files. After a stop, those of the calls in flight. An error is one
    /// of the whole run.
    pub fn answers(&'a self, inputs: &'a [InputFile]) -> impl Stream<Item = anyhow::Result<AnsweredFile<'a>>> {
        let answers = stream::iter(inputs).take_while(|_| std::future::ready(!self.stop.is_requested()));
        let answers = answers.map(|input| self.answer(input)).buffered(self.in_flight * WINDOW_PER_CALL);
        answers.filter_map(|answered| std::future::ready(answered.transpose()))
    }

    async fn answer(&self, input: &'a InputFile) -> anyhow::Result<Option<AnsweredFile<'a>>> {
        let path = input.path.as_path();
        if let Some(problem) = &input.problem {
            return Ok(Some(AnsweredFile { path, state: None, answer: Err(problem.clone()) }));
        }

        // A call gives its memory back when it ends, whether or not its answer can be written out yet.
        let Ok(_memory) = self.memory.acquire_many(kib(path).await).await else { return Ok(None) };
        if self.stop.is_requested() {
            return Ok(None);
        }
        let (state, content) = match read(path).await {
            Ok(read) => read,
            Err(problem) => return Ok(Some(AnsweredFile { path, state: None, answer: Err(problem) })),
        };

        let Ok(_place) = self.calls.acquire().await else { return Ok(None) };
        if self.stop.is_requested() {
            return Ok(None);
        }
        let answer = if lines::is_text_file(path) {
            self.ask_of_lines(&content).await?
        } else {
            self.caller.ask(self.target, content, self.progress, self.stop).await?
        };
        Ok(answer.map(|answer| AnsweredFile { path, state: Some(state), answer }))
    }

    /// The answer to a text in each line of a file. `None` when a stop came before all were asked.
    async fn ask_of_lines(&self, content: &Bytes) -> anyhow::Result<Option<FileAnswer>> {
        let requests = match lines::requests(content) {
            Ok(requests) => requests,
            Err(problem) => return Ok(Some(Err(problem))),
        };
        let mut answers = Vec::new();
        for request in requests {
            match self.caller.ask(self.target, request, self.progress, self.stop).await? {
                Some(Ok(answer)) => answers.push(answer),
                other => return Ok(other),
            }
        }
        Ok(Some(lines::joined(answers)))
    }
}

/// The memory for a file.
async fn kib(path: &Path) -> u32 {
    let path = path.to_owned();
    let bytes = blocking(move || std::fs::metadata(path).map_or(0, |metadata| metadata.len())).await;
    u32::try_from(bytes >> 10).unwrap_or(u32::MAX).clamp(1, READ_KIB_MAX)
}

async fn read(path: &Path) -> Result<(InputFileStamp, Bytes), String> {
    let path = path.to_owned();
    let read = blocking(move || -> std::io::Result<_> {
        let file = File::open(path)?;
        // Taken before the file is read, so that a change during the read is noticed.
        let state = InputFileStamp::from(&file.metadata()?);
        let mut content = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
        Ok((state, content))
    });
    match read.await {
        Ok((_, content)) if content.len() as u64 > FILE_BYTES_MAX => {
            Err(format!("the file is larger than {} MiB", FILE_BYTES_MAX >> 20))
        }
        Ok((state, content)) => Ok((state, content.into())),
        Err(error) => Err(format!("cannot read the file: {error}")),
    }
}
