//! One inbox: from files to results.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use ledge_base::backoff::{self, Backoff};
use ledge_base::clock;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::names::DeviceName;
use ledge_base::open_folder::FileStamp;
use ledge_base::principal::Principal;
use ledge_base::time_id::TimeId;
use ledge_engine::pipeline::file_format::UnexpectedFile;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::{Serving, windows};
use ledge_part::api_error::{ApiError, FailureKind};
use ledge_protocol::document_call::{DocumentAnswer, DocumentCall, read_document};
use ledge_protocol::searchable::searchable_pdf;
use ledge_service::off_thread::{WorkThread, off_thread};

use crate::claim::Claim;
use crate::config::{InboxConfig, InboxOutput};
use crate::message::{DocumentRow, InboxMessage, InboxResult, MessageOutcome, ReadDocument};
use crate::table::{self, RowHead};
use crate::workspace::{ClaimError, CsvRows, DocumentOutputs, Undelivered, Workspace};

/// The pauses before a step is tried again that may succeed later.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_mins(1);

/// The times that a file is read at which a model's process ends: then it counts as the cause.
const CRASHES_MAX: u32 = 3;

/// The most files of an inbox that are read at a time.
const AT_A_TIME_MAX: usize = 4;

/// One inbox, with its figures.
#[derive(Debug)]
pub struct Inbox {
    pub config: InboxConfig,
    device: DeviceName,
    serving: Serving,
    /// The longest file, in bytes.
    file_bytes_max: usize,
    pub(crate) files: WorkThread<Workspace>,
    figures: InboxFigures,
    /// The reasons why files wait: of the folder, and of claimed files.
    problems: Mutex<BTreeMap<Option<TimeId>, String>>,
    /// Files that other boxes claimed and never finished.
    left_by_others: Mutex<Vec<(String, usize)>>,
}

#[derive(Debug, Default)]
struct InboxFigures {
    read: AtomicU64,
    failed: AtomicU64,
    waiting: AtomicU64,
}

/// The figures of an inbox since the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboxStatus {
    /// Files that were read.
    pub read: u64,
    /// Files that are no readable documents.
    pub failed: u64,
    /// Files in the folder, and those that are being read.
    pub waiting: u64,
    /// The reason why files wait.
    pub problem: Option<String>,
    /// The other boxes that claimed files long ago and have not finished them, each with their number.
    pub left_by_others: Vec<(String, usize)>,
}

/// The reason why a file is not finished.
#[derive(Debug)]
enum Unfinished {
    /// It is no readable document.
    Failed(String),
    /// The model's process ended while it was read.
    Crashed(String),
    /// It may be finished later.
    Later(String),
    /// It has changed since it was claimed.
    Changing,
    /// Somebody has taken it away.
    Gone,
}

impl From<ClaimError> for Unfinished {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Gone => Self::Gone,
            ClaimError::Changing => Self::Changing,
            ClaimError::Files(error) => Self::Later(error.to_string()),
        }
    }
}

impl From<ApiError> for Unfinished {
    fn from(error: ApiError) -> Self {
        match error.kind() {
            FailureKind::Refused => Self::Failed(error.message),
            FailureKind::Crashed => Self::Crashed(error.message),
            FailureKind::Later => Self::Later(error.message),
        }
    }
}

impl Inbox {
    /// An inbox of the configuration, with the lists of its messages to each receiver.
    pub fn new(
        config: InboxConfig,
        device: DeviceName,
        serving: Serving,
        file_bytes_max: usize,
        undelivered: Vec<Undelivered>,
    ) -> std::io::Result<Self> {
        let workspace = Workspace::new(config.clone(), device.clone(), undelivered);
        Ok(Self {
            files: WorkThread::spawn("inbox", workspace)?,
            config,
            device,
            serving,
            file_bytes_max,
            figures: InboxFigures::default(),
            problems: Mutex::default(),
            left_by_others: Mutex::default(),
        })
    }

    pub fn status(&self) -> InboxStatus {
        let InboxFigures { read, failed, waiting } = &self.figures;
        let [read, failed, waiting] = [read, failed, waiting].map(|figure| figure.load(Ordering::Relaxed));
        let problem = self.problems().values().next().cloned();
        let left_by_others = self.left_by_others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        InboxStatus { read, failed, waiting, problem, left_by_others }
    }

    /// Reads files until it is dropped, which may happen at any time.
    pub async fn run(&self) {
        let at_a_time = std::thread::available_parallelism().map_or(1, usize::from).min(AT_A_TIME_MAX);
        let claims = stream::unfold((), async |()| Some((self.next_claim().await, ())));
        claims.for_each_concurrent(at_a_time, async |claim| self.complete(claim).await).await;
    }

    /// Waits for a file that is complete, and claims it.
    async fn next_claim(&self) -> Claim {
        let mut pauses = Backoff::new(FIRST_PAUSE, PAUSE_MAX);
        loop {
            self.window_opens().await;
            let claimed = self.files.run(|files| {
                let claimed = files.claim_next(Instant::now());
                (claimed, files.waiting(), files.new_left_by_others())
            });
            let (claimed, waiting, left) = claimed.await;
            self.figures.waiting.store(waiting as u64, Ordering::Relaxed);
            if let Some(left) = left {
                *self.left_by_others.lock().unwrap_or_else(PoisonError::into_inner) = left;
            }
            match claimed {
                Ok(Some(claim)) => {
                    self.set_problem(None, None);
                    return claim;
                }
                Ok(None) => {
                    self.set_problem(None, None);
                    pauses.reset();
                    tokio::time::sleep(self.config.poll_interval()).await;
                }
                Err(error) => {
                    self.set_problem(None, Some(error.to_string()));
                    tokio::time::sleep(pauses.pause(backoff::random())).await;
                }
            }
        }
    }

    /// Waits until the window of the inbox is open.
    async fn window_opens(&self) {
        while let Some(pause) = windows::pause(self.config.window) {
            tokio::time::sleep(pause).await;
        }
    }

    /// Finishes a claimed file, however long that takes.
    async fn complete(&self, claim: Claim) {
        let mut pauses = Backoff::new(FIRST_PAUSE, PAUSE_MAX);
        let mut crashes = 0;
        loop {
            self.window_opens().await;
            match self.attempt(&claim, &mut crashes).await {
                Ok(()) => break,
                Err(Unfinished::Gone) => {
                    let (inbox, id) = (&self.config.name, &claim.id);
                    tracing::warn!(name: "inbox.file_gone", %inbox, %id, "a claimed file is not there any more");
                    break;
                }
                Err(Unfinished::Changing) => tokio::time::sleep(self.config.settle()).await,
                Err(Unfinished::Later(reason) | Unfinished::Failed(reason) | Unfinished::Crashed(reason)) => {
                    self.set_problem(Some(&claim.id), Some(reason));
                    tokio::time::sleep(pauses.pause(backoff::random())).await;
                }
            }
        }
        self.set_problem(Some(&claim.id), None);
        self.files.run(move |files| files.release(&claim)).await;
    }

    /// Reads a claimed file, and writes its results, or the reason why there are none: of the file as it is now.
    async fn attempt(&self, claim: &Claim, crashes: &mut u32) -> Result<(), Unfinished> {
        let about = claim.clone();
        let stamp = self.files.run(move |files| files.stamp(&about)).await?;
        // A panic about one file must not end the reading of others.
        let finished = AssertUnwindSafe(self.read_and_finish(claim, stamp)).catch_unwind().await;
        match finished.unwrap_or_else(|_| Err(Unfinished::Crashed("its processing panicked".to_owned()))) {
            Err(Unfinished::Crashed(reason)) if *crashes + 1 < CRASHES_MAX => {
                *crashes += 1;
                Err(Unfinished::Later(reason))
            }
            Err(Unfinished::Failed(reason) | Unfinished::Crashed(reason)) => self.fail(claim, stamp, reason).await,
            other => other,
        }
    }

    /// Reads a claimed file that has `stamp`, and writes its results.
    async fn read_and_finish(&self, claim: &Claim, stamp: FileStamp) -> Result<(), Unfinished> {
        let principal = Principal::Inbox(self.config.name.as_str().into());
        let account = self.serving.memory().account(principal.clone());
        let file = self.read(claim, stamp, &account).await?;
        let refused = |error: UnexpectedFile| Unfinished::Failed(error.to_string());
        UnexpectedFile::unless_document(&file).map_err(refused)?;
        let call = DocumentCall {
            model: &self.config.model,
            document: &file,
            account: &account,
            priority: Some(Priority::Batch),
            deadline: None,
            principal: &principal,
        };
        let answer = read_document(&self.serving, call).await?;
        let pdf = if self.config.outputs.contains(&InboxOutput::Pdf) {
            let made = searchable_pdf(file, answer.document.get(), account.clone(), None).await;
            match made.map_err(Unfinished::from) {
                Ok(pdf) => Some(Ok(pdf)),
                // The other results say why it is missing.
                Err(Unfinished::Failed(reason)) if self.config.outputs.contains(&InboxOutput::Json) => {
                    Some(Err(reason))
                }
                Err(unfinished) => return Err(unfinished),
            }
        } else {
            None
        };
        let (config, device, about) = (self.config.clone(), self.device.clone(), claim.clone());
        let outputs = off_thread(&account, move || outputs(&config, &device, &about, &answer, pdf)).await;
        let outputs = outputs.map_err(|error| Unfinished::Crashed(error.to_string()))?;
        let about = claim.clone();
        self.files.run(move |files| files.finish(&about, stamp, &outputs)).await?;
        self.figures.read.fetch_add(1, Ordering::Relaxed);
        tracing::info!(name: "inbox.document_read", inbox = %self.config.name, id = %claim.id, "document read");
        Ok(())
    }

    /// Reads a file into counted memory.
    async fn read(&self, claim: &Claim, stamp: FileStamp, account: &MemoryAccount) -> Result<Bytes, Unfinished> {
        let too_large = || Unfinished::Failed(format!("it has more than {} bytes", self.file_bytes_max));
        let length = usize::try_from(stamp.bytes).ok().filter(|length| *length <= self.file_bytes_max);
        let length = length.ok_or_else(too_large)?;
        if length == 0 {
            return Err(Unfinished::Failed("it is empty".to_owned()));
        }
        let memory = account.take(length).map_err(|error| Unfinished::Later(error.to_string()))?;
        let about = claim.clone();
        let content = self.files.run(move |files| files.read(&about, stamp)).await?;
        Ok(memory.attach(content))
    }

    /// Puts a file aside that is no readable document.
    async fn fail(&self, claim: &Claim, stamp: FileStamp, reason: String) -> Result<(), Unfinished> {
        let at = clock::rfc3339(clock::unix_millis());
        let file = claim.shown_name();
        let message = InboxMessage {
            id: claim.id.as_str(),
            device: &self.device,
            inbox: &self.config.name,
            file: &file,
            at: &at,
            outcome: MessageOutcome::Failed { error: &reason },
        };
        let message = json(&message);
        let (about, why) = (claim.clone(), reason.clone());
        self.files.run(move |files| files.fail(&about, stamp, &why, &message)).await?;
        self.figures.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(name: "inbox.document_failed", inbox = %self.config.name, id = %claim.id, reason, "a file is no readable document");
        Ok(())
    }

    /// Notes why files wait, or that they do not any more: those of the folder, or the one of a claim.
    fn set_problem(&self, of: Option<&TimeId>, reason: Option<String>) {
        let mut problems = self.problems();
        let (inbox, had_problems) = (&self.config.name, !problems.is_empty());
        if let Some(reason) = reason {
            if !had_problems {
                tracing::warn!(name: "inbox.waiting", %inbox, reason, "files wait; it is tried again");
            }
            problems.insert(of.cloned(), reason);
        } else {
            problems.remove(&of.cloned());
            if had_problems && problems.is_empty() {
                tracing::info!(name: "inbox.working", %inbox, "files do not wait any more");
            }
        }
    }

    fn problems(&self) -> MutexGuard<'_, BTreeMap<Option<TimeId>, String>> {
        // Nothing panics under this lock.
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All that comes of a document.
fn outputs(
    config: &InboxConfig,
    device: &DeviceName,
    claim: &Claim,
    answer: &DocumentAnswer,
    pdf: Option<Result<Bytes, String>>,
) -> serde_json::Result<DocumentOutputs> {
    let DocumentAnswer { document, model } = answer;
    let read: ReadDocument = serde_json::from_str(document.get())?;
    let (id, file) = (claim.id.as_str(), claim.shown_name());
    let at = clock::rfc3339(clock::unix_millis());
    let result = InboxResult {
        id,
        inbox: &config.name,
        file: &file,
        read_at: &at,
        model_name: &model.name,
        model_version: model.version,
        pdf_error: pdf.as_ref().and_then(|pdf| pdf.as_ref().err()).map(String::as_str),
        document,
    };
    let fields: Vec<_> = model.config.field.iter().map(|field| field.name.as_str()).collect();
    let rows = || {
        let row = |document: DocumentRow<'_>| {
            let id = claim.id.numbered(document.number);
            let head = RowHead { id: &id, file: &file, read_at: &at, pages: document.pages };
            (table::row(&fields, head, document.fields, document.doubtful), id)
        };
        CsvRows { header: table::header(&fields), rows: read.rows().into_iter().map(row).collect() }
    };
    let (text, text_truncated) = read.text();
    let message = InboxMessage {
        id,
        device,
        inbox: &config.name,
        file: &file,
        at: &at,
        outcome: MessageOutcome::Read {
            model_name: &model.name,
            model_version: model.version,
            fields: &read.fields,
            doubtful: &read.doubtful,
            documents: &read.documents,
            text,
            text_truncated,
        },
    };
    let wants = |output: InboxOutput| config.outputs.contains(&output);
    Ok(DocumentOutputs {
        json: wants(InboxOutput::Json).then(|| json(&result)),
        csv: wants(InboxOutput::Csv).then(rows),
        pdf: pdf.and_then(Result::ok),
        message: json(&message),
    })
}

/// A document of JSON. Maps have text keys only, so this does not fail.
fn json(content: &impl serde::Serialize) -> Bytes {
    serde_json::to_vec(content).unwrap_or_default().into()
}
