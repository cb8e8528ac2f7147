//! The daemon's side: starts the process, reads page after page, and says why one did not come.

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, MemoryBudgetExhausted, MemoryReservation};
use ledge_base::telemetry::service_usage::CountedProcess;
use ledge_service::limited_process::{self, THIS_PROGRAM};
use ledge_service::off_thread::{CallerPermit, CallerPermits};
use rustix::process::Signal;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;

use crate::invoice_xml::InvoiceXml;
use crate::order::{
    DocumentDefect, DocumentFormat, DocumentLimits, LayerPage, PagesMessage, PagesRequest, PagesTask, SearchableSource,
    TextLayerPolicy, TextLine,
};

/// The hidden verb of the process.
const VERB: [&str; 1] = ["pages"];
/// Longest line of the process in bytes: one of a page with a text layer.
const LINE_MAX: u64 = 32 << 20;
/// Time within which a page must come, once it is wanted. Most take .1 to .5 s.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of a word as JSON besides its text, and of a byte of its text, which may be escaped.
const WORD_BYTES: usize = 200;
const CHARACTER_BYTES: usize = 6;
/// Longest wait for its last words on standard error, once it has ended.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(1);
/// Processes at a time. Each may take a gigabyte.
const PROCESSES_MAX: usize = 2;

/// The permits for processes, fair between callers.
static TURNS: LazyLock<CallerPermits> = LazyLock::new(|| CallerPermits::new(PROCESSES_MAX));

/// Why a document, or the rest of it, is not read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error(transparent)]
    Mistake(#[from] DocumentDefect),
    /// The process died, or was stopped: the document asks for too much, or is made to harm.
    #[error("page {page} cannot be drawn: {reason}")]
    Page { page: usize, reason: String },
    /// The same for a searchable PDF.
    #[error("no searchable PDF can be made of the document: {reason}")]
    Searchable { reason: String },
    #[error(transparent)]
    NoRoom(#[from] MemoryBudgetExhausted),
    /// The caller's own time is over.
    #[error("the deadline passed")]
    Deadline,
    /// This box is at fault, not the document.
    #[error("the process that reads documents {what}: {error}")]
    Process { what: &'static str, error: std::io::Error },
}

/// A page as it came.
#[derive(Debug)]
pub struct SourcePage {
    /// From 1.
    pub number: usize,
    pub width: u32,
    pub height: u32,
    pub content: PageContent,
}

/// The content of a page: its picture or its text.
#[derive(Debug)]
pub enum PageContent {
    /// Three bytes a pixel, rows from the top; `hold` counts them.
    Picture { pixels: Vec<u8>, hold: MemoryReservation },
    /// The lines of its text layer, in no order.
    Text(Vec<TextLine>),
}

/// The pages of a document, drawn one after the other in a process that ends with this handle.
#[derive(Debug)]
pub struct PagesProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The last lines of its standard error, at its end.
    errors: Option<oneshot::Receiver<String>>,
    /// Kept open to the end: the process ends with it.
    _input: ChildStdin,
    _permit: Option<CallerPermit>,
    _counted: CountedProcess,
    account: MemoryAccount,
    limits: DocumentLimits,
    deadline: Instant,
    count: usize,
    next: usize,
    invoice: Option<Box<InvoiceXml>>,
}

impl PagesProcess {
    /// Starts the process, and sends it the document. Waits for a permit until `deadline`.
    pub async fn open(
        file: Bytes,
        format: DocumentFormat,
        text_layer: TextLayerPolicy,
        limits: DocumentLimits,
        account: MemoryAccount,
        deadline: Instant,
    ) -> Result<Self, DocumentError> {
        let order = PagesRequest { bytes: file.len(), task: PagesTask::Draw { format, text_layer }, limits };
        let mut pages = Self::start(&order, &[&file], account, deadline).await?;
        match pages.message(PAGE_TIMEOUT).await? {
            (PagesMessage::Document { pages: count, invoice }, _) if (1..=limits.pages_max).contains(&count) => {
                pages.invoice = invoice.filter(|invoice| invoice.is_bounded());
                pages.count = count;
            }
            _ => return Err(pages.nonsense()),
        }
        Ok(pages)
    }

    /// Starts the process, and sends it the order and what follows it.
    async fn start(
        order: &PagesRequest,
        parts: &[&[u8]],
        account: MemoryAccount,
        deadline: Instant,
    ) -> Result<Self, DocumentError> {
        let permit = async {
            match account.counted_owner() {
                Some(owner) => Some(TURNS.take(owner).await),
                None => None,
            }
        };
        let permit = tokio::time::timeout_at(deadline.into(), permit).await.map_err(|_| DocumentError::Deadline)?;
        let broken = |what| move |error| DocumentError::Process { what, error };
        let started = limited_process::start(Path::new(THIS_PROGRAM), &VERB, "pages");
        let (mut child, errors) = started.map_err(broken("cannot be started"))?;
        // The process enters its sandbox once it has its order, and is hidden from then on.
        let counted = CountedProcess::new(child.id().unwrap_or_default());
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), Some(errors));
        let (Some(mut input), Some(output)) = (input, output) else {
            return Err(broken("has no pipes")(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut line = serde_json::to_vec(order).map_err(|error| broken("has no order")(error.into()))?;
        line.push(b'\n');
        // A process that died before it got all is reported by its end.
        let write = async {
            for part in [&[line.as_slice()], parts].concat() {
                input.write_all(part).await?;
            }
            std::io::Result::Ok(())
        };
        let sent = tokio::time::timeout_at(deadline.into(), write).await;
        let _ = sent.map_err(|_| DocumentError::Deadline)?;
        let output = BufReader::new(output);
        Ok(Self {
            child,
            output,
            errors,
            _input: input,
            _permit: permit,
            _counted: counted,
            account,
            limits: order.limits,
            deadline,
            count: 0,
            invoice: None,
            next: 1,
        })
    }

    /// The number of pages.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The invoice that a PDF carries as XML.
    pub fn take_invoice(&mut self) -> Option<Box<InvoiceXml>> {
        self.invoice.take()
    }

    /// The next page; `None` behind the last.
    pub async fn next(&mut self) -> Result<Option<SourcePage>, DocumentError> {
        let number = self.next;
        if number > self.count {
            return Ok(None);
        }
        let (message, hold) = self.message(PAGE_TIMEOUT).await?;
        self.next += 1;
        let (width, height, content) = match message {
            PagesMessage::Picture { width, height } => {
                let bytes = picture_bytes(width, height, self.limits).ok_or_else(|| self.nonsense())?;
                let hold = self.account.take(bytes)?;
                let mut pixels = vec![0; bytes];
                let read = self.output.read_exact(&mut pixels);
                match tokio::time::timeout(PAGE_TIMEOUT, read).await {
                    Ok(Ok(_)) => {}
                    _ => return Err(self.end().await),
                }
                (width, height, PageContent::Picture { pixels, hold })
            }
            PagesMessage::Text { width, height, lines } => {
                picture_bytes(width, height, self.limits).ok_or_else(|| self.nonsense())?;
                (width, height, PageContent::Text(lines))
            }
            PagesMessage::Document { .. } | PagesMessage::Searchable { .. } | PagesMessage::Refused(_) => {
                return Err(self.nonsense());
            }
        };
        drop(hold);
        Ok(Some(SourcePage { number, width, height, content }))
    }

    /// The searchable PDF that was asked for.
    async fn searchable(&mut self) -> Result<Bytes, DocumentError> {
        // No page has a limit of its own: that of the CPU time and the deadline end the process.
        let (message, _) = self.message(Duration::MAX).await?;
        let PagesMessage::Searchable { bytes } = message else { return Err(self.nonsense()) };
        if bytes as u64 > self.limits.memory_bytes {
            return Err(self.nonsense());
        }
        let hold = self.account.take(bytes)?;
        let mut made = vec![0; bytes];
        let read = self.output.read_exact(&mut made);
        match tokio::time::timeout_at(self.deadline.into(), read).await {
            Ok(Ok(_)) => Ok(hold.attach(made.into())),
            Ok(Err(_)) => Err(self.end().await),
            Err(_) => Err(DocumentError::Deadline),
        }
    }

    /// The next message, in time, and the memory that its line takes.
    async fn message(&mut self, most: Duration) -> Result<(PagesMessage, MemoryReservation), DocumentError> {
        let mut hold = self.account.hold();
        let within = most.min(self.deadline.saturating_duration_since(Instant::now()));
        let read = tokio::time::timeout(within, read_message(&mut self.output, &mut hold)).await;
        if read.is_err() {
            // The process has ended before the caller gets the result, and before the next one starts.
            let _ = self.child.kill().await;
        }
        match read {
            Ok(Ok(Some(PagesMessage::Refused(mistake)))) => Err(mistake.into()),
            Ok(Ok(Some(message))) => Ok((message, hold)),
            Ok(Ok(None)) => Err(self.end().await),
            Ok(Err(error)) => Err(error),
            Err(_) if Instant::now() >= self.deadline => Err(DocumentError::Deadline),
            Err(_) => {
                let reason = format!("it took longer than {} s", PAGE_TIMEOUT.as_secs());
                Err(DocumentError::Page { page: self.next, reason })
            }
        }
    }

    /// Why the process ended.
    async fn end(&mut self) -> DocumentError {
        let mut is_out_of_memory = false;
        if let Some(errors) = self.errors.take()
            && let Ok(Ok(complaint)) = tokio::time::timeout(LAST_WORDS_TIMEOUT, errors).await
        {
            is_out_of_memory = complaint.contains("memory allocation of");
        }
        let _ = self.child.start_kill();
        let signal = match self.child.wait().await {
            Ok(status) => limited_process::signal(status),
            Err(error) => return DocumentError::Process { what: "cannot be watched", error },
        };
        let reason = match signal.map(|number| (number, Signal::from_named_raw(number))) {
            Some((_, Some(Signal::XCPU))) => {
                let DocumentLimits { page_cpu_seconds, cpu_seconds, .. } = self.limits;
                format!(
                    "it takes more than {page_cpu_seconds} s of CPU time, or its document more than {cpu_seconds} s"
                )
            }
            Some((_, Some(Signal::ABORT))) if is_out_of_memory => {
                format!("it takes more than {} MiB of memory", self.limits.memory_bytes >> 20)
            }
            Some((_, Some(Signal::SEGV | Signal::ABORT))) => "it is nested too deep, or damaged".to_owned(),
            Some((number, _)) => format!("its process was ended by {}", limited_process::signal_name(number)),
            None => "it is damaged".to_owned(),
        };
        DocumentError::Page { page: self.next, reason }
    }

    fn nonsense(&self) -> DocumentError {
        DocumentError::Page { page: self.next, reason: "its process said what has no meaning".to_owned() }
    }
}

/// Makes a searchable PDF of a document: its pages look the same, and have these words as an invisible text layer. A
/// page behind the last of `pages` stays as it is. Waits for a permit until `deadline`.
///
/// The bytes of a PDF stay at the beginning of the new one, unless it is encrypted or its cross-reference section is
/// damaged. `limits` are those with which its pages were read: places of words are in pixels of that size.
pub async fn searchable_pdf(
    file: Bytes,
    source: SearchableSource,
    pages: &[LayerPage],
    limits: DocumentLimits,
    account: MemoryAccount,
    deadline: Instant,
) -> Result<Bytes, DocumentError> {
    let words = pages.iter().flat_map(|page| page.lines.iter().flatten());
    let _hold = account.take(words.map(|word| WORD_BYTES + CHARACTER_BYTES * word.text.len()).sum())?;
    let layers = serde_json::to_vec(pages)
        .map_err(|error| DocumentError::Process { what: "has no order", error: error.into() })?;
    let task = PagesTask::MakeSearchable { source, layer_bytes: layers.len() };
    let order = PagesRequest { bytes: file.len(), task, limits };
    let made = async {
        let mut process = PagesProcess::start(&order, &[&file, &layers], account, deadline).await?;
        process.searchable().await
    };
    made.await.map_err(|error| match error {
        DocumentError::Page { reason, .. } => DocumentError::Searchable { reason },
        error => error,
    })
}

/// The bytes of a picture of this size, unless it is larger than was asked for.
fn picture_bytes(width: u32, height: u32, limits: DocumentLimits) -> Option<usize> {
    // Sides are rounded.
    let pixels = u64::from(width) * u64::from(height);
    let is_expected = (1..=limits.pixels_max).contains(&pixels);
    is_expected.then(|| usize::try_from(3 * pixels).ok())?
}

/// Reads a line of the process; `None` at its end, and for a line that is no message.
async fn read_message(
    output: &mut (impl AsyncBufRead + Unpin),
    hold: &mut MemoryReservation,
) -> Result<Option<PagesMessage>, DocumentError> {
    let mut line = Vec::new();
    let mut rest = output.take(LINE_MAX);
    loop {
        let part = match rest.fill_buf().await {
            Ok(part) if !part.is_empty() => part,
            _ => return Ok(None),
        };
        let end = part.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(part.len(), |end| end + 1);
        // The line, and the values parsed from it.
        hold.grow(3 * taken)?;
        line.extend(part.iter().take(taken));
        rest.consume(taken);
        if end.is_some() {
            return Ok(serde_json::from_slice(&line).ok());
        }
    }
}

/// Reads the output of a process; true when it begins with a message. Each message is the same after it was written and
/// read again. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_page_messages(data: &[u8]) -> bool {
    let said = data.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<PagesMessage>(line).ok());
    let mut is_said = false;
    for message in said {
        is_said = true;
        if let PagesMessage::Picture { width, height } | PagesMessage::Text { width, height, .. } = &message {
            let limits = DocumentLimits::new(1, 1000);
            assert!(picture_bytes(*width, *height, limits).is_none_or(|bytes| bytes as u64 <= 3 * limits.pixels_max));
        }
        let written = serde_json::to_vec(&message).unwrap_or_default();
        assert_eq!(serde_json::from_slice::<PagesMessage>(&written).ok(), Some(message));
    }
    is_said
}
