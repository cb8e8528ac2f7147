//! The pages in memory, and the steps that run on them.

use std::sync::Arc;

use ledge_base::memory_budget::{Account, Reservation};

use super::super::error::InputError;
use super::super::prepared_inputs::PreparedInputs;
use super::step::{PageStep, StepResult, StepTask};
use super::steps::{OcrSteps, UprightPage};
use crate::pipeline::chain::{ChainStep, LeasedStates, prepared};

/// Callers see this.
const PAGE_LOST: &str = "the page was dropped before it was read to its end: send the document again";

/// Pages between two of their steps.
pub(super) type StoredPages = LeasedStates<StoredPage>;

/// A page with its memory.
#[derive(Debug)]
pub(super) struct StoredPage {
    page: UprightPage,
    /// Shared with the page as it came in.
    hold: Arc<Reservation>,
}

/// Makes the input of a step, and the function that makes its result from the outputs.
pub(super) fn prepare(
    reader: &Arc<OcrSteps>,
    pages: &Arc<StoredPages>,
    step: &ChainStep,
    account: &Account,
) -> Result<PreparedInputs, InputError> {
    let lease = step.lease.id();
    let PageStep { source, task } = PageStep::decode(step)?;
    let stored = match source {
        Some(source) => {
            let (picture, hold) = source.decode(account)?;
            pages.put(lease, StoredPage { page: OcrSteps::as_it_is(picture), hold: Arc::new(hold) })
        }
        None => pages.get(lease).ok_or_else(|| InputError::StateLost(PAGE_LOST.to_owned()))?,
    };
    match task {
        StepTask::PageTurn => {
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
                pages.put(lease, StoredPage { page, hold });
                Ok(StepResult::Upright(shape))
            })
        }
        StepTask::Find => {
            let (input, reader) = (reader.find_input(&stored.page)?, reader.clone());
            prepared(input, account, move |outputs| {
                let lines = reader.found_lines(&stored.page, outputs)?;
                Ok(StepResult::Lines { page: stored.page.shape(), lines })
            })
        }
        StepTask::LineTurn { lines } => {
            let input = OcrSteps::line_turn_input(&stored.page, &lines, account)?;
            drop(stored);
            prepared(input, account, |outputs| OcrSteps::upside_down(outputs).map(StepResult::UpsideDown))
        }
        StepTask::Read { lines } => {
            let (input, filled) = OcrSteps::read_input(&stored.page, &lines, account)?;
            drop(stored);
            let reader = reader.clone();
            prepared(input, account, move |outputs| reader.readings(outputs, &filled).map(StepResult::Readings))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ledge_base::memory_budget::MemoryBudget;
    use ledge_base::principal::Principal;
    use ledge_base::tensor::Tensor;
    use ledge_documents::TextLayer;

    use super::super::DocumentReader;
    use super::super::chain::DocumentChain;
    use super::super::page_shape::PageShape;
    use super::super::step::PageSource;
    use super::*;
    use crate::pipeline::chain::{Chain, Lease, result_of};
    use crate::pipeline::image::DecodeLimits;
    use crate::pipeline::kind::Pipeline as _;
    use crate::pipeline::ocr::ctc::Alphabet;
    use crate::pipeline::ocr::detection::{DetectionRules, DetectionSize};
    use crate::pipeline::ocr::page_turn::Rotation;

    const SIDE: u32 = 200;

    fn reader() -> Arc<DocumentReader> {
        let reader = OcrSteps {
            alphabet: Alphabet::from_lines("a\nb"),
            size: DetectionSize { shorter_side_min: 32, longer_side_max: 64 },
            rules: DetectionRules::default(),
            min_confidence: 0.0,
            turns_pages: true,
            turns_lines: true,
            fields: Vec::new(),
            pages_max: 1,
            text_layer: TextLayer::Never,
        };
        Arc::new(DocumentReader { chain: DocumentChain { reader: Arc::new(reader), pages: Arc::default() } })
    }

    fn drawn(height: u32) -> Option<PageSource> {
        PageSource::drawn(SIDE, height, Bytes::from(vec![255; (3 * SIDE * height) as usize]))
    }

    fn step(page: &Lease, source: Option<PageSource>, task: StepTask) -> ChainStep {
        PageStep { source, task }.encode(page).unwrap()
    }

    fn result(pipeline: &DocumentReader, step: &ChainStep, output: Tensor, account: &Account) -> StepResult {
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
        let account = Account::unlimited();
        let page = lease(&pipeline);
        let turn = step(&page, drawn(100), StepTask::PageTurn);
        let turned = PageShape { width: 100, height: SIDE, turn: Rotation::ThreeQuarters };
        // A step may be run again.
        for _ in 0..2 {
            assert_eq!(result(&pipeline, &turn, on_its_side(), &account), StepResult::Upright(turned));
        }
        let find = step(&page, None, StepTask::Find);
        let found = StepResult::Lines { page: turned, lines: Vec::new() };
        assert_eq!(result(&pipeline, &find, nothing(), &account), found);
        assert_eq!(pipeline.chain.pages.count(), 1);
        // The lease is that of the page and of its steps.
        drop((page, turn));
        assert_eq!(pipeline.chain.pages.count(), 1);
        let late = ChainStep { lease: Lease::of_other_process(find.lease.id()), ..find.clone() };
        drop(find);
        assert_eq!(pipeline.chain.pages.count(), 0);
        let lost = InputError::StateLost(PAGE_LOST.to_owned());
        assert_eq!(pipeline.chain.prepare(&late, &account).unwrap_err(), lost);
        let never = lease(&pipeline);
        let read = step(&never, None, StepTask::Read { lines: Vec::new() });
        assert_eq!(pipeline.chain.prepare(&read, &account).unwrap_err(), lost);
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
        let turn = step(&page, source, StepTask::PageTurn);
        result(&pipeline, &turn, on_its_side(), &account);
        // Until the job is dropped, there are the page as it came in and the turned one.
        assert_eq!(memory.used(), 2 * pixels);
        drop(turn);
        assert_eq!(memory.used(), pixels);
        drop(page);
        assert_eq!(memory.used(), 0);

        let file = PageSource::file(Bytes::from_static(include_bytes!("../sample.png")), DecodeLimits::default());
        let page = lease(&pipeline);
        let find = step(&page, Some(file), StepTask::Find);
        drop(pipeline.chain.prepare(&find, &account).unwrap());
        assert_eq!(pipeline.chain.pages.count(), 1);
        drop((page, find));
        assert_eq!((pipeline.chain.pages.count(), memory.used()), (0, 0));
    }
}
