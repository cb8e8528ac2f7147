//! The process that draws pages, from inside. It limits itself before it reads anything of the document.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ledge_base::sys;
use ledge_sandbox::{self as sandbox, Sandbox};
use ledge_service::limited_process::{self, ProcessLimits};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::bitmap::Bitmap;
use crate::invoice_xml::InvoiceXml;
use crate::order::{
    DocumentDefect, DocumentFormat, DocumentLimits, LayerPage, PagesMessage, PagesRequest, PagesTask, SearchableSource,
    TextLayerPolicy,
};
use crate::pdf::{self, DrawnPage};
use crate::{searchable, tiff};

/// Lower than other work: other callers wait for answers that take only milliseconds.
const NICENESS: i32 = 5;

/// Open files: the three standard ones, and those that the system opens.
const OPEN_FILES_MAX: u64 = 16;

/// Threads: one that draws, one that waits for the end of the input, one that watches the CPU time of a page.
const THREADS_MAX: u64 = 4;

/// Reasons why no document is read.
#[derive(Debug, thiserror::Error)]
pub enum PagesProcessError {
    #[error("cannot set the resource limits of this process: {0}")]
    Limits(#[from] rustix::io::Errno),
    #[error("`ledge pages` is started by the daemon, which sends an order on standard input; this is not one: {0}")]
    Order(String),
    #[error("cannot write to standard output: {0}")]
    Output(#[from] std::io::Error),
}

/// Reads a document from standard input, and writes its pages to standard output. To be called while there is one
/// thread.
pub fn run() -> Result<(), PagesProcessError> {
    sys::close_other_files();
    let wrong = |error: &dyn std::fmt::Display| PagesProcessError::Order(error.to_string());
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.by_ref().take(1 << 16).read_line(&mut line).map_err(|error| wrong(&error))?;
    let order: PagesRequest = serde_json::from_str(&line).map_err(|error| wrong(&error))?;
    let PagesRequest { bytes, task, limits } = order;
    limited_process::limit_this_process(ProcessLimits {
        data_bytes: limits.memory_bytes,
        cpu_seconds: limits.cpu_seconds,
        niceness: NICENESS,
    })?;
    // The document comes through a pipe and fonts are in this program, so it opens no file. If the system lacks one
    // mechanism, the others still apply, and `ledge doctor` reports it.
    Sandbox {
        readable: Vec::new(),
        writable: Vec::new(),
        system_files: false,
        limits: sandbox::SandboxLimits {
            data_bytes: limits.memory_bytes,
            open_files: OPEN_FILES_MAX,
            file_bytes: 0,
            threads: THREADS_MAX,
        },
    }
    .apply();

    let mut read = |bytes: usize| {
        let mut part = Vec::new();
        part.try_reserve_exact(bytes).map_err(|error| wrong(&error))?;
        input.by_ref().take(bytes as u64).read_to_end(&mut part).map_err(|error| wrong(&error))?;
        if part.len() == bytes { Ok(part) } else { Err(wrong(&"the document is cut off")) }
    };
    let file = read(bytes)?;
    let layers: Vec<LayerPage> = match task {
        PagesTask::Draw { .. } => Vec::new(),
        PagesTask::MakeSearchable { layer_bytes, .. } => {
            serde_json::from_slice(&read(layer_bytes)?).map_err(|error| wrong(&error))?
        }
    };
    limited_process::end_with(input);

    let mut output = std::io::stdout().lock();
    let result = match task {
        PagesTask::Draw { format, text_layer } => {
            let page = PageCpuClock::start(Duration::from_secs(limits.page_cpu_seconds));
            pages(file, (format, text_layer), limits, &page, &mut output)
        }
        // Nothing is drawn, so only the limit of the whole document applies.
        PagesTask::MakeSearchable { source, .. } => make_searchable(file, source, &layers, limits, &mut output),
    };
    match result {
        Ok(()) => {}
        Err(PagesStopReason::Mistake(mistake)) => say(&PagesMessage::Refused(mistake), &[], &mut output)?,
        Err(PagesStopReason::Output(error)) => return Err(error.into()),
    }
    Ok(())
}

/// Why no further page is drawn.
enum PagesStopReason {
    Mistake(DocumentDefect),
    Output(std::io::Error),
}

impl From<DocumentDefect> for PagesStopReason {
    fn from(mistake: DocumentDefect) -> Self {
        Self::Mistake(mistake)
    }
}

impl From<std::io::Error> for PagesStopReason {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

/// The CPU time of the page that is drawn. Opening the document belongs to the first page.
struct PageCpuClock {
    /// The CPU time of the process in milliseconds when the page began.
    begun: Arc<AtomicU64>,
}

impl PageCpuClock {
    /// Ends the process with SIGXCPU when a page takes longer than `limit`: the renderer cannot be stopped in another
    /// way. The limit of the system would apply to all pages together, and a sandboxed process cannot change it.
    fn start(limit: Duration) -> Self {
        let clock = Self { begun: Arc::new(AtomicU64::new(0)) };
        let begun = clock.begun.clone();
        std::thread::spawn(move || {
            loop {
                let taken = cpu_time().saturating_sub(Duration::from_millis(begun.load(Ordering::Relaxed)));
                match limit.checked_sub(taken) {
                    // One thread draws, so its CPU time is over after this time at the earliest.
                    Some(left) if !left.is_zero() => std::thread::sleep(left),
                    _ => {
                        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::XCPU);
                    }
                }
            }
        });
        clock
    }

    fn next_page(&self) {
        self.begun.store(u64::try_from(cpu_time().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The CPU time of this process until now.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn pages(
    file: Vec<u8>,
    (format, text_layer): (DocumentFormat, TextLayerPolicy),
    limits: DocumentLimits,
    page: &PageCpuClock,
    output: &mut impl Write,
) -> Result<(), PagesStopReason> {
    match format {
        DocumentFormat::Pdf => {
            let document = pdf::PdfFile::open(file, limits)?;
            let (pages, invoice) = (document.pages(), InvoiceXml::of(document.pdf()).map(Box::new));
            say(&PagesMessage::Document { pages, invoice }, &[], output)?;
            document.draw(text_layer, |drawn| send(drawn, page, output))
        }
        DocumentFormat::Tiff => {
            let document = tiff::TiffFile::open(file, limits)?;
            say(&PagesMessage::Document { pages: document.pages(), invoice: None }, &[], output)?;
            document.draw(|drawn| send(drawn, page, output))
        }
        DocumentFormat::Bitmap => {
            let drawn = Bitmap::read(&file)?.drawn(limits)?;
            say(&PagesMessage::Document { pages: 1, invoice: None }, &[], output)?;
            send(drawn, page, output)
        }
    }
}

fn make_searchable(
    file: Vec<u8>,
    source: SearchableSource,
    layers: &[LayerPage],
    limits: DocumentLimits,
    output: &mut impl Write,
) -> Result<(), PagesStopReason> {
    let made = searchable::make(file, source, layers, limits)?;
    Ok(say(&PagesMessage::Searchable { bytes: made.len() }, &made, output)?)
}

fn send(drawn: DrawnPage, page: &PageCpuClock, output: &mut impl Write) -> Result<(), PagesStopReason> {
    match drawn {
        DrawnPage::Picture { width, height, pixels } => say(&PagesMessage::Picture { width, height }, &pixels, output)?,
        DrawnPage::Text { width, height, lines } => say(&PagesMessage::Text { width, height, lines }, &[], output)?,
    }
    page.next_page();
    Ok(())
}

fn say(message: &PagesMessage, data: &[u8], output: &mut impl Write) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    output.write_all(&line)?;
    output.write_all(data)?;
    output.flush()
}
