//! The chain from the bytes of a document to its answer: page after page through the models.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_base::tensor::{DataType, Tensor};
use ledge_documents::{DocumentError, DocumentFormat, DocumentLimits, InvoiceXml, PageContent};

use super::super::error::{PostprocessError, PreprocessError};
use super::super::prepared_inputs::PreprocessedInputs;
use super::document::ReadPage;
use super::models::{FIND, LINE_TURN, PAGE_TURN, READ, RESULTS};
use super::pages::{self, LeasedPages};
use super::step::{FoundPage, OcrStep, OcrStepResult, OcrStepTask, PageSource};
use super::steps::{FoundLine, LINES_PER_TURN_RUN, OcrSteps};
use crate::backend::{ModelPort, ModelSignature};
use crate::pipeline::chain::{ChainError, ChainStep, Lease, LeaseId, ModelChain, RunSteps, run_all, run_step};
use crate::pipeline::content::CallContent;
use crate::pipeline::file_format::FileFormat;
use crate::pipeline::image::DecodeLimits;
use crate::pipeline::ocr::ctc::DecodedText;
use crate::pipeline::ocr::detection_view::DetectionView;
use crate::pipeline::ocr::geometry::PageArea;

/// The name of the input: the bytes of a file.
const DOCUMENT: &str = "document";

/// The stage in which pages of a document are waited for.
const DRAW: &str = "draw";

/// The chain of one model.
#[derive(Debug)]
pub(super) struct OcrChain {
    pub reader: Arc<OcrSteps>,
    pub pages: Arc<LeasedPages>,
}

impl ModelChain for OcrChain {
    fn signature(&self) -> ModelSignature {
        let port = |name: &str, dim| ModelPort { name: name.to_owned(), datatype: DataType::Bytes, shape: vec![dim] };
        let dims = [-1, 1];
        ModelSignature {
            inputs: vec![port(DOCUMENT, 1)],
            outputs: RESULTS.iter().zip(dims).map(|(name, dim)| port(name, dim)).collect(),
        }
    }

    fn run<'c>(
        &'c self,
        content: CallContent,
        limits: DecodeLimits,
        steps: &'c dyn RunSteps,
    ) -> BoxFuture<'c, Result<Vec<Tensor>, ChainError>> {
        Box::pin(async move {
            let CallContent::Document(file) = content else {
                return Err(PreprocessError::Content("expected a document".to_owned()).into());
            };
            let call = OcrCall { reader: &self.reader, steps };
            let (pages, invoice) = match format_of(&file) {
                Some(format) => call.pages(file, format).await?,
                None => (vec![call.page(1, PageSource::file(file, limits)).await?], None),
            };
            Ok(self.reader.results(&pages, invoice.as_deref())?)
        })
    }

    fn memory_of(&self, step: &ChainStep) -> usize {
        OcrStep::decode(step).map_or(0, |step| step.memory(&self.reader))
    }

    fn prepare(&self, step: &ChainStep, account: &MemoryAccount) -> Result<PreprocessedInputs, PreprocessError> {
        pages::prepare(&self.reader, &self.pages, step, account)
    }

    fn release(&self, lease: LeaseId) {
        self.pages.release(lease);
    }
}

/// The format of a file whose pages are drawn; `None` for a picture that the process of the models decodes.
fn format_of(file: &[u8]) -> Option<DocumentFormat> {
    match FileFormat::of(file)? {
        FileFormat::Pdf => Some(DocumentFormat::Pdf),
        FileFormat::Tiff => Some(DocumentFormat::Tiff),
        FileFormat::Gif | FileFormat::Bmp => Some(DocumentFormat::Bitmap),
        FileFormat::Image(_) | FileFormat::Foreign(_) => None,
    }
}

/// The pages of a document, and the invoice that it carries as XML.
type ReadDocument = (Vec<ReadPage>, Option<Box<InvoiceXml>>);

/// One call.
struct OcrCall<'c> {
    reader: &'c OcrSteps,
    steps: &'c dyn RunSteps,
}

impl OcrCall<'_> {
    /// Reads the pages of a document, one after the other: the next one is drawn while the models read.
    async fn pages(&self, file: Bytes, format: DocumentFormat) -> Result<ReadDocument, ChainError> {
        let mut waited = Instant::now();
        let limits = DocumentLimits::new(self.reader.pages_max(), self.reader.lines_max());
        let (account, deadline) = (self.steps.account().clone(), self.steps.deadline());
        let text_layer = self.reader.text_layer();
        let document = ledge_documents::PagesProcess::open(file, format, text_layer, limits, account, deadline).await;
        let mut document = document.map_err(|error| not_drawn(&error))?;
        let mut pages = Vec::with_capacity(document.count());
        while let Some(page) = document.next().await.map_err(|error| not_drawn(&error))? {
            self.steps.waited(DRAW, waited.elapsed());
            let ledge_documents::SourcePage { number, width, height, content } = page;
            pages.push(match content {
                PageContent::Text(lines) => {
                    let lines = lines.into_iter().map(|line| {
                        let ledge_documents::TextLine { text, left, top, right, bottom } = line;
                        (text, PageArea { left, top, right, bottom })
                    });
                    self.reader.page_of_text(number, (width, height), lines)
                }
                PageContent::Picture { pixels, hold } => {
                    let source = PageSource::drawn(width, height, hold.attach(pixels.into()))
                        .ok_or_else(|| PreprocessError::Content(format!("page {number} is no picture")))?;
                    self.page(number, source).await?
                }
            });
            waited = Instant::now();
        }
        Ok((pages, document.take_invoice()))
    }

    async fn page(&self, number: usize, source: PageSource) -> Result<ReadPage, ChainError> {
        match self.page_once(number, source.clone()).await {
            // The process that had the page has ended, and the models are in another one now.
            Err(ChainError::Input(PreprocessError::StateLost(_))) => self.page_once(number, source).await,
            read => read,
        }
    }

    async fn page_once(&self, number: usize, source: PageSource) -> Result<ReadPage, ChainError> {
        let page = self.steps.lease();
        let (FoundPage { shape, lines, .. }, view, _memory) = self.lines(&page, source).await?;
        let turned = self.upside_down(&page, &lines).await?;
        let readings = self.readings(&page, &lines).await?;
        // The model of turns is sometimes wrong of a line that stands upright, so it is read both ways.
        let flagged: Vec<usize> = (0..lines.len()).filter(|index| turned.get(*index) == Some(&true)).collect();
        let other_way: Vec<_> =
            flagged.iter().filter_map(|index| lines.get(*index).copied()).map(FoundLine::half_turned).collect();
        let other_readings = self.readings(&page, &other_way).await?;

        let mut read: Vec<(FoundLine, DecodedText)> = lines.into_iter().zip(readings).collect();
        for (index, (line, reading)) in flagged.into_iter().zip(other_way.into_iter().zip(other_readings)) {
            if let Some(known) = read.get_mut(index).filter(|known| reading.confidence > known.1.confidence) {
                *known = (line, reading);
            }
        }
        Ok(self.reader.page(number, shape, view, read))
    }

    /// The lines of a page as it stands upright, the view in which they were found, and the memory of the page.
    async fn lines(
        &self,
        page: &Lease,
        source: PageSource,
    ) -> Result<(FoundPage, DetectionView, MemoryReservation), ChainError> {
        let form = source.form();
        let (mut source, mut upright) = (Some(source), None);
        if self.reader.turns_pages() {
            let found = self.step(PAGE_TURN, page, source.take(), OcrStepTask::PageTurn).await?;
            upright = Some(found.upright(form)?);
        }
        let mut view = DetectionView::default();
        let found = self.step(FIND, page, source, OcrStepTask::Find { view }).await?;
        let mut found = found.lines(form, upright, self.reader.lines_max())?;
        // Most pages are looked at once: these are too small or too faint in the picture that the model got.
        while let Some(next) = self.reader.next_view(view, &found) {
            let again = self.step(FIND, page, None, OcrStepTask::Find { view: next }).await?;
            let again = again.lines(form, Some(found.shape), self.reader.lines_max())?;
            if again.lines.len() < found.lines.len() {
                break;
            }
            (view, found) = (next, again);
        }
        OcrSteps::check_length(&found.lines)?;
        // The process of the models keeps the page for its other steps.
        let memory = self.steps.account().take(found.shape.bytes())?;
        Ok((found, view, memory))
    }

    /// Finds the lines that may be upside down.
    async fn upside_down(&self, page: &Lease, lines: &[FoundLine]) -> Result<Vec<bool>, ChainError> {
        if !self.reader.turns_lines() {
            return Ok(Vec::new());
        }
        let run = async |lines: &[FoundLine]| {
            let task = OcrStepTask::LineTurn { lines: lines.to_vec() };
            let found = self.step(LINE_TURN, page, None, task).await?;
            Ok(found.upside_down(lines.len())?)
        };
        let runs: Vec<_> = lines.chunks(LINES_PER_TURN_RUN).map(run).collect();
        let turned: Vec<Vec<bool>> = run_all(self.steps, runs).await?;
        Ok(turned.into_iter().flatten().collect())
    }

    /// The characters of each line.
    async fn readings(&self, page: &Lease, lines: &[FoundLine]) -> Result<Vec<DecodedText>, ChainError> {
        let groups = OcrSteps::groups(lines);
        let run = async |group: &Vec<usize>| {
            let lines: Vec<_> = group.iter().filter_map(|index| lines.get(*index).copied()).collect();
            let count = lines.len();
            let found = self.step(READ, page, None, OcrStepTask::Read { lines }).await?;
            Ok(found.readings(count)?)
        };
        let runs: Vec<_> = groups.iter().map(run).collect();
        let read = run_all(self.steps, runs).await?;
        let mut readings = vec![DecodedText::default(); lines.len()];
        for (index, reading) in groups.iter().flatten().zip(read.into_iter().flatten()) {
            if let Some(place) = readings.get_mut(*index) {
                *place = reading;
            }
        }
        Ok(readings)
    }

    /// Runs one model on a page.
    async fn step(
        &self,
        model: &'static str,
        page: &Lease,
        source: Option<PageSource>,
        task: OcrStepTask,
    ) -> Result<OcrStepResult, ChainError> {
        run_step(self.steps, model, OcrStep { source, task }.encode(page)?).await
    }
}

/// Why pages of a document did not come, for the caller.
fn not_drawn(error: &DocumentError) -> ChainError {
    match error {
        DocumentError::Mistake(_) | DocumentError::Page { .. } | DocumentError::Searchable { .. } => {
            PreprocessError::Content(error.to_string()).into()
        }
        DocumentError::NoRoom(error) => ChainError::from(*error),
        DocumentError::Deadline => ChainError::Deadline,
        DocumentError::Process { .. } => PostprocessError::Values(error.to_string()).into(),
    }
}
