//! Reads a document with the models of a chain: each step is a job of the queue of its model, so that other callers have
//! their turn between two steps.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use ledge_base::memory_budget::{Account, Hold};
use ledge_base::tensor::DataType;
use ledge_documents::{DocumentError, DocumentLimits, PageContent, Pages};
use ledge_engine::backend::{ComputeTime, Port, RunResult, Signature};
use ledge_engine::pipeline::content::Content;
use ledge_engine::pipeline::document_reading::document::{self, Page};
use ledge_engine::pipeline::document_reading::step::{PageShape, PageSource, PageStep, StepResult, StepTask};
use ledge_engine::pipeline::document_reading::steps::{FoundLine, LINES_PER_TURN_RUN};
use ledge_engine::pipeline::document_reading::{DocumentFormat, PageLease, RESULTS, Reader, part};
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{AnswerError, InputError, Pipeline};
use ledge_engine::pipeline::reading::ctc::Reading;
use ledge_engine::pipeline::work::WorkInput;
use ledge_service::limited_process::THIS_PROGRAM;

use super::loaded_model::LoadedModel;
use crate::scheduling::instance::{FinishedRun, InferError, RawInputs};
use crate::scheduling::terms::Terms;

/// The name of a chain's input: the bytes of a file.
pub const DOCUMENT: &str = "document";

/// The stage in which pages of a document are waited for.
const DRAW: &str = "draw";

/// Inputs and outputs of a chain, as callers see them.
pub(super) fn signature() -> Signature {
    let port = |name: &str, dim| Port { name: name.to_owned(), datatype: DataType::Bytes, shape: vec![dim] };
    let dims = [-1, 1];
    Signature {
        inputs: vec![port(DOCUMENT, 1)],
        outputs: RESULTS.iter().zip(dims).map(|(name, dim)| port(name, dim)).collect(),
    }
}

/// Reads a document. `account` pays for its pages while they are read.
pub(super) async fn read(
    model: &LoadedModel,
    pipeline: &Arc<dyn Pipeline>,
    reader: &Reader,
    content: Content,
    limits: DecodeLimits,
    account: Account,
    terms: Terms,
) -> Result<FinishedRun, InferError> {
    let Content::Document(file) = content else {
        return Err(InputError::Content("expected a document".to_owned()).into());
    };
    let chain = Chain { model, pipeline, reader, account, terms, drawn: Mutex::default(), steps: Mutex::default() };
    let pages = if DocumentFormat::sniff(&file).is_some() {
        chain.pages(file).await?
    } else {
        vec![chain.page(1, PageSource::file(file, limits)).await?]
    };
    let drawn = chain.drawn.into_inner().unwrap_or_else(PoisonError::into_inner);
    let steps = chain.steps.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut whole = wall_times(drawn, &steps);
    whole.run.outputs = document::results(pages).map_err(InferError::Outputs)?;
    Ok(whole)
}

/// One call of a chain.
struct Chain<'c> {
    model: &'c LoadedModel,
    pipeline: &'c Arc<dyn Pipeline>,
    reader: &'c Reader,
    account: Account,
    terms: Terms,
    /// The time in which pages were waited for.
    drawn: Mutex<Option<Duration>>,
    /// The steps until now. Several may be under way at one time.
    steps: Mutex<Vec<StepTimes>>,
}

/// The times of one step of a model.
#[derive(Debug, Clone, Copy)]
struct StepTimes {
    name: &'static str,
    begun: Instant,
    queue: Duration,
    prepare: Duration,
    run: ComputeTime,
    postprocess: Duration,
}

impl Chain<'_> {
    /// Reads the pages of a document, one after the other: the next one is drawn while the models read.
    async fn pages(&self, file: bytes::Bytes) -> Result<Vec<Page>, InferError> {
        let begun = Instant::now();
        let limits = DocumentLimits::new(self.reader.pages_max(), self.reader.lines_max());
        let (text_layer, account) = (self.reader.text_layer(), self.account.clone());
        let mut document = Pages::open(Path::new(THIS_PROGRAM), file, text_layer, limits, account, self.terms.deadline)
            .await
            .map_err(|error| not_drawn(&error, begun))?;
        let mut pages = Vec::with_capacity(document.count());
        let mut waited = begun;
        while let Some(page) = document.next().await.map_err(|error| not_drawn(&error, begun))? {
            *self.drawn.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default() += waited.elapsed();
            let ledge_documents::Page { number, width, height, content } = page;
            pages.push(match content {
                PageContent::Text(lines) => {
                    let lines = lines.into_iter().map(|line| (line.text, line.area));
                    self.reader.page_of_text(number, (width, height), lines)
                }
                PageContent::Picture { pixels, hold } => {
                    let source = PageSource::drawn(width, height, hold.keep(pixels.into()))
                        .ok_or_else(|| InputError::Content(format!("page {number} is no picture")))?;
                    self.page(number, source).await?
                }
            });
            waited = Instant::now();
        }
        Ok(pages)
    }

    async fn page(&self, number: usize, source: PageSource) -> Result<Page, InferError> {
        match self.page_once(number, source.clone()).await {
            // The process that had the page has ended, and the models are in another one now.
            Err(InferError::Preparation(InputError::PageLost)) => self.page_once(number, source).await,
            read => read,
        }
    }

    async fn page_once(&self, number: usize, source: PageSource) -> Result<Page, InferError> {
        let page = Arc::new(PageLease::new(self.pipeline.clone()));
        let (shape, lines, _memory) = self.lines(&page, source).await?;
        let turned = self.upside_down(&page, &lines).await?;
        let readings = self.readings(&page, &lines).await?;
        // The model of turns is sometimes wrong of a line that stands upright, so it is read both ways.
        let flagged: Vec<usize> = (0..lines.len()).filter(|index| turned.get(*index) == Some(&true)).collect();
        let other_way: Vec<_> =
            flagged.iter().filter_map(|index| lines.get(*index).copied()).map(FoundLine::half_turned).collect();
        let other_readings = self.readings(&page, &other_way).await?;

        let mut read: Vec<(FoundLine, Reading)> = lines.into_iter().zip(readings).collect();
        for (index, (line, reading)) in flagged.into_iter().zip(other_way.into_iter().zip(other_readings)) {
            if let Some(known) = read.get_mut(index).filter(|known| reading.confidence > known.1.confidence) {
                *known = (line, reading);
            }
        }
        Ok(self.reader.page(number, shape, read))
    }

    /// The lines of a page, its shape as it stands upright, and its memory.
    async fn lines(
        &self,
        page: &Arc<PageLease>,
        source: PageSource,
    ) -> Result<(PageShape, Vec<FoundLine>, Hold), InferError> {
        let form = source.form();
        let (mut source, mut upright) = (Some(source), None);
        if self.reader.turns_pages() {
            let found = self.step(part::PAGE_TURN, page, source.take(), StepTask::PageTurn).await?;
            upright = Some(found.upright(form).map_err(InferError::Outputs)?);
        }
        let found = self.step(part::FIND, page, source, StepTask::Find).await?;
        let (shape, lines) = found.lines(form, upright, self.reader.lines_max()).map_err(InferError::Outputs)?;
        Reader::check_length(&lines)?;
        // The process of the models keeps the page for its other steps.
        let memory = self.account.take(shape.bytes()).map_err(InputError::NoRoom)?;
        Ok((shape, lines, memory))
    }

    /// Tells which lines may stand upside down.
    async fn upside_down(&self, page: &Arc<PageLease>, lines: &[FoundLine]) -> Result<Vec<bool>, InferError> {
        if !self.reader.turns_lines() {
            return Ok(Vec::new());
        }
        let run = async |lines: &[FoundLine]| {
            let task = StepTask::LineTurn { lines: lines.to_vec() };
            let found = self.step(part::LINE_TURN, page, None, task).await?;
            found.upside_down(lines.len()).map_err(InferError::Outputs)
        };
        let runs: Vec<_> = lines.chunks(LINES_PER_TURN_RUN).map(run).collect();
        let turned: Vec<Vec<bool>> = self.some_at_a_time(runs).await?;
        Ok(turned.into_iter().flatten().collect())
    }

    /// The characters of each line.
    async fn readings(&self, page: &Arc<PageLease>, lines: &[FoundLine]) -> Result<Vec<Reading>, InferError> {
        let groups = Reader::groups(lines);
        let run = async |group: &Vec<usize>| {
            let lines: Vec<_> = group.iter().filter_map(|index| lines.get(*index).copied()).collect();
            let count = lines.len();
            let found = self.step(part::READ, page, None, StepTask::Read { lines }).await?;
            found.readings(count).map_err(InferError::Outputs)
        };
        let runs: Vec<_> = groups.iter().map(run).collect();
        let read = self.some_at_a_time(runs).await?;
        let mut readings = vec![Reading::default(); lines.len()];
        for (index, reading) in groups.iter().flatten().zip(read.into_iter().flatten()) {
            if let Some(place) = readings.get_mut(*index) {
                *place = reading;
            }
        }
        Ok(readings)
    }

    /// Runs steps in the order given, no more at a time than there are instances, and one.
    async fn some_at_a_time<T>(
        &self,
        runs: Vec<impl Future<Output = Result<T, InferError>>>,
    ) -> Result<Vec<T>, InferError> {
        let at_a_time = self.model.scale().max + 1;
        stream::iter(runs).buffered(at_a_time).try_collect().await
    }

    /// Runs one model on a page.
    async fn step(
        &self,
        name: &'static str,
        page: &Arc<PageLease>,
        source: Option<PageSource>,
        task: StepTask,
    ) -> Result<StepResult, InferError> {
        let instances =
            self.model.part(name).ok_or_else(|| InferError::Unavailable { reason: format!("no {name}") })?;
        let raw = RawInputs {
            pipeline: self.pipeline.clone(),
            input: WorkInput::Step(PageStep { page: page.id(), source, task }),
            account: self.account.clone(),
            own: 0,
            page: Some(page.clone()),
        };
        let begun = Instant::now();
        let finished = instances.run_raw(raw, vec![0], self.terms.clone()).await?;
        let FinishedRun { run: RunResult { outputs, time: run, .. }, queue, prepare, postprocess, .. } = finished;
        let times = StepTimes { name, begun, queue, prepare, run, postprocess };
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(times);
        StepResult::of_outputs(&outputs).map_err(InferError::Outputs)
    }
}

/// The times of a call from those of its steps, each a part of the time on the clock: while a step runs it is compute, else
/// while one prepares its input or output it is that, and else a wait. Without outputs.
fn wall_times(drawn: Option<Duration>, steps: &[StepTimes]) -> FinishedRun {
    let union =
        |spans: &dyn Fn(&StepTimes) -> Vec<(Instant, Instant)>| length_of(steps.iter().flat_map(spans).collect());
    let running = |step: &StepTimes| {
        let from = step.begun + step.queue + step.prepare;
        (from, from + step.run.total())
    };
    let preparing = |step: &StepTimes| (step.begun + step.queue, step.begun + step.queue + step.prepare);
    let working = |step: &StepTimes| (step.begun + step.queue, running(step).1 + step.postprocess);
    let run = union(&|step| vec![running(step)]);
    let prepared = union(&|step| vec![running(step), preparing(step)]);
    let worked = union(&|step| vec![working(step)]);
    let all = union(&|step| vec![(step.begun, working(step).1)]);

    let mut stages: Vec<_> = drawn.map(|drawn| (DRAW, drawn)).into_iter().collect();
    for StepTimes { name, .. } in steps {
        if stages.iter().all(|(known, _)| known != name) {
            let of_model = steps.iter().filter(|step| step.name == *name).map(working);
            stages.push((*name, length_of(of_model.collect())));
        }
    }
    let mut sum = ComputeTime::default();
    for step in steps {
        sum += step.run;
    }
    let result = RunResult { outputs: Vec::new(), time: shortened(sum, run), cpu: Duration::ZERO };
    FinishedRun {
        run: result,
        queue: all.saturating_sub(worked),
        prepare: drawn.unwrap_or_default() + prepared.saturating_sub(run),
        postprocess: worked.saturating_sub(prepared),
        stages,
    }
}

/// The phases of `time` in proportion, together as long as `total`.
fn shortened(time: ComputeTime, total: Duration) -> ComputeTime {
    let whole = time.total().as_secs_f64();
    let part = |phase: Duration| if whole > 0.0 { total.mul_f64(phase.as_secs_f64() / whole) } else { Duration::ZERO };
    ComputeTime { input: part(time.input), infer: part(time.infer), output: part(time.output) }
}

/// The time that some spans take together, where they overlap once.
fn length_of(mut spans: Vec<(Instant, Instant)>) -> Duration {
    spans.sort_unstable();
    let (mut length, mut until) = (Duration::ZERO, None);
    for (from, to) in spans {
        let from = until.map_or(from, |until| from.max(until));
        length += to.saturating_duration_since(from);
        until = Some(from.max(to));
    }
    length
}

/// Why pages of a document did not come, for the caller.
fn not_drawn(error: &DocumentError, begun: Instant) -> InferError {
    match error {
        DocumentError::Mistake(_) | DocumentError::Page { .. } => InputError::Content(error.to_string()).into(),
        DocumentError::NoRoom(error) => InputError::NoRoom(*error).into(),
        DocumentError::Deadline => InferError::DeadlineExceeded { waited: begun.elapsed(), run: None },
        DocumentError::Process { .. } => InferError::Outputs(AnswerError::Values(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_steps_at_one_time_are_parts_of_the_time_on_the_clock() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let step = |name, begun, [queue, prepare, infer, postprocess]: [u64; 4]| StepTimes {
            name,
            begun: begin + ms(begun),
            queue: ms(queue),
            prepare: ms(prepare),
            run: ComputeTime { infer: ms(infer), ..ComputeTime::default() },
            postprocess: ms(postprocess),
        };
        let steps = [
            step("find", 0, [10, 5, 20, 5]),
            // Two at a time on two cores, and a third that waits for one of these.
            step("read", 40, [0, 10, 50, 0]),
            step("read", 40, [0, 10, 40, 0]),
            step("read", 40, [50, 10, 40, 10]),
        ];
        let whole = wall_times(Some(ms(7)), &steps);
        let times =
            [whole.queue, whole.prepare, whole.run.time.total(), whole.postprocess].map(|time| time.as_millis());
        // find runs from 15 to 35; read from 50 to 100 and from 100 to 140.
        assert_eq!(times, [10, 7 + 5 + 10, 20 + 90, 5 + 10]);
        assert_eq!(whole.stages, [(DRAW, ms(7)), ("find", ms(30)), ("read", ms(110))]);
        let end = 150 + 7;
        assert_eq!(times.iter().sum::<u128>(), end);

        let none = wall_times(None, &[]);
        assert_eq!((none.queue, none.run.time.total(), none.stages), (Duration::ZERO, Duration::ZERO, Vec::new()));
    }

    #[test]
    fn spans_at_one_time_count_once() {
        let begin = Instant::now();
        let span = |from, to| (begin + Duration::from_millis(from), begin + Duration::from_millis(to));
        let length = |spans: &[_]| length_of(spans.to_vec()).as_millis();
        assert_eq!(length(&[]), 0);
        assert_eq!(length(&[span(20, 30), span(0, 10)]), 20);
        assert_eq!(length(&[span(2, 5), span(0, 10), span(8, 12), span(11, 11)]), 12);
    }
}
