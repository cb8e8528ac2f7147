//! The pages in memory, and the steps that run on them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::memory_budget::{Account, Hold};
use ledge_base::tensor::Tensor;

use super::step::{PageId, PageStep, StepResult, StepTask};
use super::steps::{Reader, UprightPage};
use crate::pipeline::kind::{AnswerError, InputError, Pipeline, Prepared};

/// Pages between two of their steps, each with its memory.
#[derive(Debug, Default)]
pub(super) struct PageStore(Mutex<HashMap<PageId, Arc<StoredPage>>>);

#[derive(Debug)]
struct StoredPage {
    page: UprightPage,
    /// Shared with the page as it came in.
    hold: Arc<Hold>,
}

impl PageStore {
    /// Frees a page, if it is there.
    pub fn release(&self, id: PageId) {
        let released = self.pages().remove(&id);
        // Freed without the lock.
        drop(released);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.pages().len()
    }

    /// The page of a step, decoded if the step has its source.
    fn page(&self, step: &PageStep, account: &Account) -> Result<Arc<StoredPage>, InputError> {
        let Some(source) = &step.source else {
            return self.pages().get(&step.page).cloned().ok_or(InputError::PageLost);
        };
        let (picture, hold) = source.decode(account)?;
        Ok(self.put(step.page, StoredPage { page: Reader::as_it_is(picture), hold: Arc::new(hold) }))
    }

    fn put(&self, id: PageId, page: StoredPage) -> Arc<StoredPage> {
        let page = Arc::new(page);
        let before = self.pages().insert(id, page.clone());
        drop(before);
        page
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<PageId, Arc<StoredPage>>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the input of a step, and what makes its result of the outputs.
pub(super) fn prepare(
    reader: &Arc<Reader>,
    pages: &Arc<PageStore>,
    step: &PageStep,
    account: &Account,
) -> Result<Prepared, InputError> {
    let stored = pages.page(step, account)?;
    let reader = reader.clone();
    match &step.task {
        StepTask::PageTurn => {
            let input = Reader::page_turn_input(&stored.page)?;
            let (pages, id, account) = (pages.clone(), step.page, account.clone());
            prepared(input, &account.clone(), move |outputs| {
                let page = Reader::upright(&stored.page, outputs)?;
                let shape = page.shape();
                // A drawn page has its memory with its bytes, and a turned one has bytes of its own.
                let hold = if page.shares_bytes_with(&stored.page) || stored.hold.bytes() > 0 {
                    stored.hold.clone()
                } else {
                    Arc::new(account.take_anyway(page.bytes()))
                };
                pages.put(id, StoredPage { page, hold });
                Ok(StepResult::Upright(shape))
            })
        }
        StepTask::Find => {
            let input = reader.find_input(&stored.page)?;
            prepared(input, account, move |outputs| {
                let lines = reader.found_lines(&stored.page, outputs)?;
                Ok(StepResult::Lines { page: stored.page.shape(), lines })
            })
        }
        StepTask::LineTurn { lines } => {
            let input = Reader::line_turn_input(&stored.page, lines, account)?;
            drop(stored);
            prepared(input, account, |outputs| Reader::upside_down(outputs).map(StepResult::UpsideDown))
        }
        StepTask::Read { lines } => {
            let (input, filled) = Reader::read_input(&stored.page, lines, account)?;
            drop(stored);
            prepared(input, account, move |outputs| reader.readings(outputs, &filled).map(StepResult::Readings))
        }
    }
}

/// An input, which counts until the result is made of the outputs.
fn prepared(
    input: Tensor,
    account: &Account,
    finish: impl FnOnce(&[Tensor]) -> Result<StepResult, AnswerError> + Send + 'static,
) -> Result<Prepared, InputError> {
    let hold = account.take(input.data().len())?;
    let postprocess = move |outputs: Vec<Tensor>| {
        let result = finish(&outputs)?;
        drop(hold);
        Ok(vec![result.to_tensor()?])
    };
    Ok(Prepared { inputs: vec![input], postprocess: Some(Box::new(postprocess)) })
}

/// A page that the steps of a call share: it is freed when the call and all of its steps have dropped this.
#[derive(Debug)]
pub struct PageLease {
    pipeline: Arc<dyn Pipeline>,
    id: PageId,
}

impl PageLease {
    /// A lease for a page that `pipeline` will read.
    pub fn new(pipeline: Arc<dyn Pipeline>) -> Self {
        Self { pipeline, id: PageId::next() }
    }

    pub fn id(&self) -> PageId {
        self.id
    }
}

impl Drop for PageLease {
    fn drop(&mut self) {
        self.pipeline.release_page(self.id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use ledge_base::memory_budget::MemoryBudget;
    use ledge_base::principal::Principal;

    use super::super::step::{PageShape, PageSource};
    use super::super::{DocumentReader, TextLayer};
    use super::*;
    use crate::pipeline::image::DecodeLimits;
    use crate::pipeline::reading::ctc::Alphabet;
    use crate::pipeline::reading::detection::{DetectionRules, DetectionSize};
    use crate::pipeline::reading::page_turn::Turn;

    const SIDE: u32 = 200;

    fn reader() -> Arc<DocumentReader> {
        let reader = Reader {
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
        Arc::new(DocumentReader { reader: Arc::new(reader), pages: Arc::default() })
    }

    fn drawn(height: u32) -> Option<PageSource> {
        PageSource::drawn(SIDE, height, Bytes::from(vec![255; (3 * SIDE * height) as usize]))
    }

    fn step(page: &PageLease, source: Option<PageSource>, task: StepTask) -> PageStep {
        PageStep { page: page.id(), source, task }
    }

    fn result(pipeline: &DocumentReader, step: &PageStep, output: Tensor, account: &Account) -> StepResult {
        let prepared = pipeline.prepare_step(step, account).unwrap();
        let results = prepared.postprocess.unwrap()(vec![output]).unwrap();
        StepResult::of_outputs(&results).unwrap()
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
        let page = PageLease::new(pipeline.clone());
        let turn = step(&page, drawn(100), StepTask::PageTurn);
        let turned = PageShape { width: 100, height: SIDE, turn: Turn::ThreeQuarters };
        // A step may be run again.
        for _ in 0..2 {
            assert_eq!(result(&pipeline, &turn, on_its_side(), &account), StepResult::Upright(turned));
        }
        let find = step(&page, None, StepTask::Find);
        let found = StepResult::Lines { page: turned, lines: Vec::new() };
        assert_eq!(result(&pipeline, &find, nothing(), &account), found);
        assert_eq!(pipeline.pages.len(), 1);
        drop(page);
        assert_eq!(pipeline.pages.len(), 0);
        assert_eq!(pipeline.prepare_step(&find, &account).unwrap_err(), InputError::PageLost);
        let never = PageLease::new(pipeline.clone());
        let read = step(&never, None, StepTask::Read { lines: Vec::new() });
        assert_eq!(pipeline.prepare_step(&read, &account).unwrap_err(), InputError::PageLost);
    }

    #[test]
    fn the_memory_of_a_page_counts_while_it_is_kept() {
        let memory = MemoryBudget::new(10 << 20);
        let account = memory.account(Principal::Local);
        let pipeline = reader();
        let pixels = (3 * SIDE * 300) as usize;
        let source = {
            let hold = account.take(pixels).unwrap();
            PageSource::drawn(SIDE, 300, hold.keep(vec![255; pixels].into()))
        };
        assert_eq!(memory.used(), pixels);
        let page = PageLease::new(pipeline.clone());
        let turn = step(&page, source, StepTask::PageTurn);
        result(&pipeline, &turn, on_its_side(), &account);
        // Until the job is dropped, there are the page as it came in and the turned one.
        assert_eq!(memory.used(), 2 * pixels);
        drop(turn);
        assert_eq!(memory.used(), pixels);
        drop(page);
        assert_eq!(memory.used(), 0);

        let file = PageSource::file(Bytes::from_static(include_bytes!("../sample.png")), DecodeLimits::default());
        let page = PageLease::new(pipeline.clone());
        let find = step(&page, Some(file), StepTask::Find);
        drop(pipeline.prepare_step(&find, &account).unwrap());
        assert_eq!(pipeline.pages.len(), 1);
        drop(page);
        assert_eq!((pipeline.pages.len(), memory.used()), (0, 0));
    }
}
