//! The pages in memory, and the steps that run on them.

use std::sync::Arc;

use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};

use super::super::error::PreprocessError;
use super::super::prepared_inputs::PreprocessedInputs;
use super::step::{OcrStep, OcrStepResult, OcrStepTask};
use super::steps::{OcrSteps, UprightPage};
use crate::pipeline::chain::{ChainStep, LeasedStates, prepared};

/// Callers see this.
const PAGE_LOST: &str = "the page was dropped before it was read to its end: send the document again";

/// Pages between two of their steps.
pub(super) type LeasedPages = LeasedStates<LeasedPage>;

/// A page with its memory.
#[derive(Debug)]
pub(super) struct LeasedPage {
    page: UprightPage,
    /// Shared with the page as it came in.
    hold: Arc<MemoryReservation>,
}

/// Makes the input of a step, and the function that makes its result from the outputs.
pub(super) fn prepare(
    reader: &Arc<OcrSteps>,
    pages: &Arc<LeasedPages>,
    step: &ChainStep,
    account: &MemoryAccount,
) -> Result<PreprocessedInputs, PreprocessError> {
    let lease = step.lease.id();
    let OcrStep { source, task } = OcrStep::decode(step)?;
    let stored = match source {
        Some(source) => {
            let (picture, hold) = source.decode(account)?;
            pages.put(lease, LeasedPage { page: OcrSteps::as_it_is(picture), hold: Arc::new(hold) })
        }
        None => pages.get(lease).ok_or_else(|| PreprocessError::StateLost(PAGE_LOST.to_owned()))?,
    };
    match task {
        OcrStepTask::PageTurn => {
            let input = OcrSteps::page_turn_input(&stored.page)?;
            let (pages, turner) = (pages.clone(), account.clone());
            prepared(input, account, move |outputs| {
                let page = OcrSteps::upright(&stored.page, outputs)?;
                let shape = page.shape();
                // The bytes of a drawn page carry their reservation already, and a turned page has other bytes.
                let hold = if page.shares_bytes_with(&stored.page) || stored.hold.bytes() > 0 {
                    stored.hold.clone()
                } else {
                    Arc::new(turner.force_reserve(page.bytes()))
                };
                pages.put(lease, LeasedPage { page, hold });
                Ok(OcrStepResult::Upright(shape))
            })
        }
        OcrStepTask::Find { view } => {
            let (input, reader) = (reader.find_input(&stored.page, view, account)?, reader.clone());
            prepared(input, account, move |outputs| {
                let lines = reader.found_lines(&stored.page, view, outputs)?;
                let are_faint = OcrSteps::are_faint(&stored.page, &lines);
                Ok(OcrStepResult::Lines { page: stored.page.shape(), lines, are_faint })
            })
        }
        OcrStepTask::LineTurn { lines } => {
            let input = OcrSteps::line_turn_input(&stored.page, &lines, account)?;
            drop(stored);
            prepared(input, account, |outputs| OcrSteps::upside_down(outputs).map(OcrStepResult::UpsideDown))
        }
        OcrStepTask::Read { lines } => {
            let (input, filled) = OcrSteps::read_input(&stored.page, &lines, account)?;
            drop(stored);
            let reader = reader.clone();
            prepared(input, account, move |outputs| reader.readings(outputs, &filled).map(OcrStepResult::Readings))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ledge_base::memory_budget::MemoryBudget;
    use ledge_base::principal::Principal;
    use ledge_base::tensor::Tensor;
    use ledge_documents::TextLayerPolicy;

    use super::super::DocumentReader;
    use super::super::chain::OcrChain;
    use super::super::page_shape::PageShape;
    use super::super::step::PageSource;
    use super::super::steps::FoundLine;
    use super::*;
    use crate::pipeline::chain::{Lease, ModelChain, result_of};
    use crate::pipeline::image::DecodeLimits;
    use crate::pipeline::kind::Pipeline as _;
    use crate::pipeline::ocr::ctc::{CtcAlphabet, DecodedText};
    use crate::pipeline::ocr::detection::{TextDetectionRules, TextDetectionSize};
    use crate::pipeline::ocr::detection_view::{DetectionView, PixelArea};
    use crate::pipeline::ocr::geometry::{PageArea, Point, Quadrilateral};
    use crate::pipeline::ocr::page_turn::QuarterTurns;

    const SIDE: u32 = 200;
    const FIND: OcrStepTask = OcrStepTask::Find { view: DetectionView { area: None, is_strengthened: false } };

    fn reader() -> Arc<DocumentReader> {
        let reader = OcrSteps {
            alphabet: CtcAlphabet::from_lines("a\nb"),
            size: TextDetectionSize { shorter_side_min: 32, longer_side_max: 64 },
            rules: TextDetectionRules::default(),
            min_confidence: 0.0,
            turns_pages: true,
            turns_lines: true,
            fields: Vec::new(),
            pages_max: 1,
            text_layer: TextLayerPolicy::Never,
        };
        Arc::new(DocumentReader { chain: OcrChain { reader: Arc::new(reader), pages: Arc::default() } })
    }

    fn drawn(height: u32) -> Option<PageSource> {
        PageSource::drawn(SIDE, height, Bytes::from(vec![255; (3 * SIDE * height) as usize]))
    }

    fn step(page: &Lease, source: Option<PageSource>, task: OcrStepTask) -> ChainStep {
        OcrStep { source, task }.encode(page).unwrap()
    }

    fn result(pipeline: &DocumentReader, step: &ChainStep, output: Tensor, account: &MemoryAccount) -> OcrStepResult {
        let prepared = pipeline.chain.prepare(step, account).unwrap();
        let results = prepared.postprocess.unwrap()(vec![output]).unwrap();
        result_of(&results).unwrap()
    }

    fn lease(pipeline: &Arc<DocumentReader>) -> Lease {
        let pipeline = pipeline.clone();
        Lease::new(move |lease| pipeline.release(lease))
    }

    /// The scores of a page that stands on its side.
    fn on_its_side() -> Tensor {
        Tensor::from_vec(vec![1, 4], vec![0.0_f32, 1.0, 0.0, 0.0]).unwrap()
    }

    fn nothing() -> Tensor {
        Tensor::from_vec(vec![1, 1, 64, 64], vec![0.0_f32; 64 * 64]).unwrap()
    }

    #[test]
    fn a_page_stays_in_memory_for_its_steps_until_its_lease_is_dropped() {
        let pipeline = reader();
        let account = MemoryAccount::unlimited();
        let page = lease(&pipeline);
        let turn = step(&page, drawn(100), OcrStepTask::PageTurn);
        let turned = PageShape { width: 100, height: SIDE, turn: QuarterTurns::ThreeQuarters };
        // A step may be run again.
        for _ in 0..2 {
            assert_eq!(result(&pipeline, &turn, on_its_side(), &account), OcrStepResult::Upright(turned));
        }
        let find = step(&page, None, FIND);
        let found = OcrStepResult::Lines { page: turned, lines: Vec::new(), are_faint: true };
        assert_eq!(result(&pipeline, &find, nothing(), &account), found);
        assert_eq!(pipeline.chain.pages.count(), 1);
        // The lease is that of the page and of its steps.
        drop((page, turn));
        assert_eq!(pipeline.chain.pages.count(), 1);
        let late = ChainStep { lease: Lease::of_other_process(find.lease.id()), ..find.clone() };
        drop(find);
        assert_eq!(pipeline.chain.pages.count(), 0);
        let lost = PreprocessError::StateLost(PAGE_LOST.to_owned());
        assert_eq!(pipeline.chain.prepare(&late, &account).unwrap_err(), lost);
        let never = lease(&pipeline);
        let read = step(&never, None, OcrStepTask::Read { lines: Vec::new() });
        assert_eq!(pipeline.chain.prepare(&read, &account).unwrap_err(), lost);
    }

    #[test]
    fn lines_of_a_part_lie_on_the_page() {
        let pipeline = reader();
        let account = MemoryAccount::unlimited();
        let page = lease(&pipeline);
        let find = |source, left, width| {
            let area = Some(PixelArea { left, top: 50, width, height: 64 });
            step(&page, source, OcrStepTask::Find { view: DetectionView { area, is_strengthened: true } })
        };
        let is_text = |at: usize| (20..40).contains(&(at / 64)) && (8..56).contains(&(at % 64));
        let map = (0..64 * 64).map(|at| if is_text(at) { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
        let map = Tensor::from_vec(vec![1, 1, 64, 64], map).unwrap();
        let found = result(&pipeline, &find(drawn(200), 100, 64), map, &account);
        let OcrStepResult::Lines { lines, .. } = &found else { panic!("{found:?}") };
        let [line] = lines.as_slice() else { panic!("{lines:?}") };
        // The middle of the text in the map, from the corner of the part on.
        let off = line.area.centre().minus(Point::new(100.0 + 32.0, 50.0 + 30.0));
        assert!(off.length() < 1.0, "{line:?}");
        let wrong = pipeline.chain.prepare(&find(None, 190, 64), &account).unwrap_err();
        assert_eq!(wrong.to_string(), "the view is not on the page");
    }

    #[test]
    fn print_that_shows_through_a_page_is_not_read() {
        let reader = reader().chain.reader.clone();
        let line = |top: f32, confidence| {
            let area = PageArea { left: 0.0, top, right: 100.0, bottom: top + 10.0 };
            let reading =
                DecodedText { text: "ab".to_owned(), confidence, places: vec![0.2, 0.8], scores: vec![0.9; 2] };
            (FoundLine::at(Quadrilateral::upright(area)), reading)
        };
        let read = |is_strengthened, confidences: &[f32]| {
            let shape = PageShape { width: 100, height: 100, turn: QuarterTurns::None };
            let view = DetectionView { area: None, is_strengthened };
            let lines =
                confidences.iter().zip(0_u8..).map(|(confidence, row)| line(20.0 * f32::from(row), *confidence));
            let page = reader.page(1, shape, view, lines.collect());
            let results = reader.results(&[page], None).unwrap();
            let text = results[0].strings().unwrap().next().unwrap().to_vec();
            String::from_utf8(text).unwrap().matches("ab").count()
        };
        assert_eq!(read(false, &[0.9, 0.6, 0.6]), 3);
        assert_eq!(read(true, &[0.9, 0.9, 0.6]), 2, "faint print");
        assert_eq!(read(true, &[0.9, 0.6, 0.6]), 0, "the print of the back");
    }

    #[test]
    fn the_memory_of_a_page_counts_while_it_is_kept() {
        let memory = MemoryBudget::new(10 << 20);
        let account = memory.account(Principal::Local);
        let pipeline = reader();
        let pixels = (3 * SIDE * 300) as usize;
        let source = {
            let hold = account.take(pixels).unwrap();
            PageSource::drawn(SIDE, 300, hold.attach(vec![255; pixels].into()))
        };
        assert_eq!(memory.used(), pixels);
        let page = lease(&pipeline);
        let turn = step(&page, source, OcrStepTask::PageTurn);
        result(&pipeline, &turn, on_its_side(), &account);
        // Until the job is dropped, there are the page as it came in and the turned one.
        assert_eq!(memory.used(), 2 * pixels);
        drop(turn);
        assert_eq!(memory.used(), pixels);
        drop(page);
        assert_eq!(memory.used(), 0);

        let file = PageSource::file(Bytes::from_static(include_bytes!("../sample.png")), DecodeLimits::default());
        let page = lease(&pipeline);
        let find = step(&page, Some(file), FIND);
        drop(pipeline.chain.prepare(&find, &account).unwrap());
        assert_eq!(pipeline.chain.pages.count(), 1);
        drop((page, find));
        assert_eq!((pipeline.chain.pages.count(), memory.used()), (0, 0));
    }
}
