//! Steps as plain data: a page with a task, and the result. Results are checked here, as they may come from a process
//! that runs foreign models.

use bytes::Bytes;
use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use serde::{Deserialize, Serialize};

use super::super::error::{PostprocessError, PreprocessError};
use super::steps::{self, FoundLine, OcrSteps};
use crate::pipeline::chain::{ChainStep, Lease, refused};
use crate::pipeline::document_reading::page_shape::PageShape;
use crate::pipeline::image::{self, DecodeLimits, Photograph, Rgb8Image};
use crate::pipeline::ocr::ctc::DecodedText;
use crate::pipeline::ocr::detection_view::DetectionView;
use crate::pipeline::ocr::page_turn::QuarterTurns;

/// The request of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct OcrStep {
    /// The page, in the first of its steps. It stays in memory for the others.
    pub source: Option<PageSource>,
    pub task: OcrStepTask,
}

/// The work of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum OcrStepTask {
    /// Turn the page upright.
    PageTurn,
    /// Find its lines in this view.
    Find { view: DetectionView },
    /// Find the upside-down ones of these lines.
    LineTurn { lines: Vec<FoundLine> },
    /// Read these lines.
    Read { lines: Vec<FoundLine> },
}

/// A page before it is read. Clones share the bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct PageSource {
    form: PageSourceForm,
    bytes: Bytes,
}

/// The meaning of the bytes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageSourceForm {
    /// A picture file.
    File { limits: DecodeLimits },
    /// A page of a document, drawn: three bytes a pixel.
    Drawn { width: u32, height: u32 },
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum OcrStepResult {
    Upright(PageShape),
    Lines { page: PageShape, lines: Vec<FoundLine>, are_faint: bool },
    UpsideDown(Vec<bool>),
    Readings(Vec<DecodedText>),
}

/// A page whose lines were found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundPage {
    pub shape: PageShape,
    pub lines: Vec<FoundLine>,
    /// Set when most of its lines are faint, or none was found.
    pub are_faint: bool,
}

impl OcrStep {
    /// The step as plain data. The lease is that of the page.
    pub fn encode(self, page: &Lease) -> Result<ChainStep, PostprocessError> {
        let Self { source, task } = self;
        let (form, bytes) = source.map(|source| (source.form, source.bytes)).unzip();
        // The rows of its run.
        let rows = match &task {
            OcrStepTask::PageTurn | OcrStepTask::Find { .. } => 1,
            OcrStepTask::LineTurn { lines } | OcrStepTask::Read { lines } => lines.len(),
        };
        ChainStep::new(page, &(form, task), bytes, rows)
    }

    pub fn decode(step: &ChainStep) -> Result<Self, PreprocessError> {
        let (form, task) = step.task::<(Option<PageSourceForm>, OcrStepTask)>()?;
        let no_picture = || PreprocessError::Content("the page is no picture".to_owned());
        let source = match (form, &step.bytes) {
            (None, None) => None,
            (Some(form), Some(bytes)) => Some(PageSource::from_parts(form, bytes.clone()).ok_or_else(no_picture)?),
            _ => return Err(no_picture()),
        };
        Ok(Self { source, task })
    }

    /// The memory that it takes besides its bytes: that of a page that comes with it, and of the tensors of its lines.
    pub fn memory(&self, reader: &OcrSteps) -> usize {
        let page = self.source.as_ref().map_or(0, |source| match source.form {
            PageSourceForm::File { limits } => image::memory_of(&source.bytes, limits, &|size| size),
            PageSourceForm::Drawn { .. } => 0,
        });
        let lines = match &self.task {
            OcrStepTask::PageTurn | OcrStepTask::Find { .. } => 0,
            OcrStepTask::LineTurn { lines } => OcrSteps::bytes_of_turned(lines),
            OcrStepTask::Read { lines } => OcrSteps::bytes_of_read(lines) + reader.bytes_of_scores(lines),
        };
        page.saturating_add(lines)
    }
}

impl PageSource {
    /// A picture file.
    pub fn file(bytes: Bytes, limits: DecodeLimits) -> Self {
        Self { form: PageSourceForm::File { limits }, bytes }
    }

    /// A page that was drawn; `None` for another number of bytes or a side of zero. The memory of the page counts with
    /// these bytes.
    pub fn drawn(width: u32, height: u32, pixels: Bytes) -> Option<Self> {
        Rgb8Image::over(width, height, pixels.clone())?;
        Some(Self { form: PageSourceForm::Drawn { width, height }, bytes: pixels })
    }

    pub fn form(&self) -> PageSourceForm {
        self.form
    }

    /// The source of these parts; `None` if they do not fit together.
    fn from_parts(form: PageSourceForm, bytes: Bytes) -> Option<Self> {
        match form {
            PageSourceForm::File { limits } => Some(Self::file(bytes, limits)),
            PageSourceForm::Drawn { width, height } => Self::drawn(width, height, bytes),
        }
    }

    /// The picture, with a reservation of the memory that it takes besides these bytes.
    pub(super) fn decode(&self, account: &MemoryAccount) -> Result<(Photograph, MemoryReservation), PreprocessError> {
        let mut hold = account.hold();
        match self.form {
            PageSourceForm::File { limits } => Ok((steps::decode(&self.bytes, limits, &mut hold)?, hold)),
            PageSourceForm::Drawn { width, height } => {
                let picture = Rgb8Image::over(width, height, self.bytes.clone());
                let picture = picture.ok_or_else(|| PreprocessError::Content("the page is no picture".to_owned()))?;
                Ok((picture.into(), hold))
            }
        }
    }
}

impl PageSourceForm {
    /// Returns true if a page of this source can have that shape.
    fn admits(self, PageShape { width, height, turn }: PageShape) -> bool {
        match self {
            Self::File { limits } => width > 0 && height > 0 && limits.check((width, height)).is_ok(),
            Self::Drawn { width: drawn_width, height: drawn_height } => {
                turn.turned_size((drawn_width, drawn_height)) == (width, height)
            }
        }
    }
}

impl OcrStepResult {
    /// The page that [`OcrStepTask::PageTurn`] made of this source.
    pub fn upright(self, source: PageSourceForm) -> Result<PageShape, PostprocessError> {
        match self {
            Self::Upright(page) if source.admits(page) => Ok(page),
            Self::Upright(page) => Err(refused(&format!("{source:?} cannot become {page:?}"))),
            _ => Err(refused("it is no page")),
        }
    }

    /// The lines that [`OcrStepTask::Find`] found, at most `lines_max`, on a page of that shape; without one, on the
    /// page as its source has it.
    pub fn lines(
        self,
        source: PageSourceForm,
        known: Option<PageShape>,
        lines_max: usize,
    ) -> Result<FoundPage, PostprocessError> {
        let Self::Lines { page, lines, are_faint } = self else { return Err(refused("it has no lines")) };
        let is_right = known.map_or(page.turn == QuarterTurns::None && source.admits(page), |known| known == page);
        if !is_right {
            return Err(refused(&format!("the page is {page:?}, expected {known:?} of {source:?}")));
        }
        if lines.len() > lines_max {
            return Err(refused(&format!("it has {} lines, more than {lines_max}", lines.len())));
        }
        if let Some(line) = lines.iter().find(|line| !line.is_near(page.size())) {
            return Err(refused(&format!("{line:?} is not on a page of {}x{}", page.width, page.height)));
        }
        Ok(FoundPage { shape: page, lines, are_faint })
    }

    /// The answers to [`OcrStepTask::LineTurn`], for `count` lines.
    pub fn upside_down(self, count: usize) -> Result<Vec<bool>, PostprocessError> {
        match self {
            Self::UpsideDown(turned) if turned.len() == count => Ok(turned),
            _ => Err(refused(&format!("it has no answer for each of {count} lines"))),
        }
    }

    /// The readings of [`OcrStepTask::Read`], for `count` lines.
    pub fn readings(self, count: usize) -> Result<Vec<DecodedText>, PostprocessError> {
        match self {
            Self::Readings(readings) if readings.len() == count => {
                match readings.iter().find(|read| !read.is_sound()) {
                    None => Ok(readings),
                    Some(_) => Err(refused("a reading has numbers that are no shares, or not one for each character")),
                }
            }
            _ => Err(refused(&format!("it has no reading for each of {count} lines"))),
        }
    }
}

/// Reads any bytes as the result of a step, for the fuzzers; true for a result of a step for two lines of a small page.
/// The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_step_result(data: &[u8]) -> bool {
    use ledge_base::tensor::Tensor;

    use crate::pipeline::chain::result_of;

    const LIMITS: DecodeLimits = DecodeLimits { max_pixels: 1 << 16 };
    let form = PageSourceForm::File { limits: LIMITS };
    let Ok(tensor) = Tensor::from_strings(vec![1], [data]) else { return false };
    let Ok(result) = result_of::<OcrStepResult>(&[tensor]) else { return false };
    let fits = |page: PageShape| assert!(LIMITS.check(page.size()).is_ok() && page.width * page.height > 0, "{page:?}");

    let upright = result.clone().upright(form).map(fits);
    let lines = result.clone().lines(form, None, 2).map(|FoundPage { shape, lines, .. }| {
        fits(shape);
        assert!(lines.len() <= 2 && OcrSteps::groups(&lines).iter().flatten().count() == lines.len());
    });
    let turned = result.clone().upside_down(2).map(|turned| assert_eq!(turned.len(), 2));
    let readings = result.readings(2).map(|readings| assert!(readings.iter().all(DecodedText::is_sound)));
    [upright, lines, turned, readings].iter().any(Result::is_ok)
}

#[cfg(test)]
mod tests {
    use ledge_base::tensor::Tensor;
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::chain::{LeaseId, result_of, result_tensor};
    use crate::pipeline::ocr::geometry::{Point, Quadrilateral};

    const FILE: PageSourceForm = PageSourceForm::File { limits: DecodeLimits { max_pixels: 5000 } };
    const DRAWN: PageSourceForm = PageSourceForm::Drawn { width: 100, height: 50 };

    fn shape(width: u32, height: u32, turn: QuarterTurns) -> PageShape {
        PageShape { width, height, turn }
    }

    fn line(x: f32) -> FoundLine {
        FoundLine::at(Quadrilateral([
            Point::new(x, 1.0),
            Point::new(30.0, 1.0),
            Point::new(30.0, 9.0),
            Point::new(2.0, 9.0),
        ]))
    }

    fn reading(text: &str, confidence: f32, places: &[f32]) -> OcrStepResult {
        OcrStepResult::Readings(vec![DecodedText {
            text: text.to_owned(),
            confidence,
            places: places.to_vec(),
            scores: places.to_vec(),
        }])
    }

    fn page() -> Lease {
        Lease::of_other_process(LeaseId::default())
    }

    fn steps() -> impl Strategy<Value = OcrStep> {
        let corners = proptest::array::uniform4((-5e3_f32..5e3, -5e3_f32..5e3));
        let line = corners.prop_map(|corners| FoundLine::at(Quadrilateral(corners.map(|(x, y)| Point::new(x, y)))));
        let lines = || proptest::collection::vec(line.clone(), 0..4);
        let task = prop_oneof![
            Just(OcrStepTask::PageTurn),
            any::<bool>()
                .prop_map(|is_strengthened| OcrStepTask::Find { view: DetectionView { area: None, is_strengthened } }),
            lines().prop_map(|lines| OcrStepTask::LineTurn { lines }),
            lines().prop_map(|lines| OcrStepTask::Read { lines }),
        ];
        let file = proptest::collection::vec(any::<u8>(), 0..60)
            .prop_map(|file| PageSource::file(file.into(), DecodeLimits { max_pixels: 9 }));
        let drawn = (1_u32..5, 1_u32..5, any::<u8>()).prop_map(|(width, height, shade)| {
            PageSource::drawn(width, height, vec![shade; (3 * width * height) as usize].into()).unwrap()
        });
        let source = proptest::option::of(prop_oneof![file, drawn]);
        (source, task).prop_map(|(source, task)| OcrStep { source, task })
    }

    #[test]
    fn a_source_and_bytes_that_do_not_fit_together_are_refused() {
        let source = PageSource::drawn(2, 1, vec![0; 6].into());
        let step =
            OcrStep { source, task: OcrStepTask::Find { view: DetectionView::default() } }.encode(&page()).unwrap();
        assert!(OcrStep::decode(&step).is_ok());
        for bytes in [None, Some(Bytes::from_static(&[0; 5]))] {
            assert!(OcrStep::decode(&ChainStep { bytes, ..step.clone() }).is_err());
        }
    }

    #[test]
    fn a_page_of_a_size_that_its_source_cannot_have_is_refused() {
        let upright = |source, page| OcrStepResult::Upright(page).upright(source);
        assert!(upright(FILE, shape(100, 50, QuarterTurns::Half)).is_ok());
        assert!(upright(FILE, shape(50, 100, QuarterTurns::Quarter)).is_ok(), "as many pixels as before");
        assert!(upright(DRAWN, shape(100, 50, QuarterTurns::Half)).is_ok());
        assert!(upright(DRAWN, shape(50, 100, QuarterTurns::Quarter)).is_ok());
        assert!(upright(FILE, shape(100, 51, QuarterTurns::None)).is_err(), "more pixels than the limit");
        assert!(upright(FILE, shape(0, 51, QuarterTurns::None)).is_err());
        assert!(upright(DRAWN, shape(50, 100, QuarterTurns::None)).is_err());
        assert!(OcrStepResult::UpsideDown(vec![]).upright(FILE).is_err());
    }

    #[test]
    fn lines_that_are_too_many_or_nowhere_are_refused() {
        let page = shape(100, 50, QuarterTurns::None);
        let found = |page, known, lines: &[FoundLine]| {
            OcrStepResult::Lines { page, lines: lines.to_vec(), are_faint: false }
                .lines(FILE, known, 2)
                .map(|found| found.lines.len())
        };
        assert_eq!(found(page, None, &[line(2.0); 2]), Ok(2));
        assert!(found(page, None, &[line(2.0); 3]).is_err());
        for nowhere in [f32::NAN, f32::INFINITY, -1e9, 1e9] {
            assert!(found(page, None, &[line(nowhere)]).is_err(), "{nowhere}");
        }
        let turned = shape(100, 50, QuarterTurns::Half);
        assert_eq!(found(turned, Some(turned), &[]), Ok(0));
        assert!(found(turned, None, &[]).is_err(), "no model turned it");
        assert!(found(page, Some(turned), &[]).is_err(), "another page than the one that was turned");
        assert!(OcrStepResult::Readings(vec![]).lines(FILE, None, 2).is_err());
    }

    #[test]
    fn answers_for_other_lines_than_those_asked_about_are_refused() {
        assert_eq!(OcrStepResult::UpsideDown(vec![true]).upside_down(1), Ok(vec![true]));
        assert!(OcrStepResult::UpsideDown(vec![true]).upside_down(2).is_err());
        assert!(reading("ab", 0.5, &[0.2, 0.9]).readings(1).is_ok());
        assert!(reading("ab", 0.5, &[0.2, 0.9]).readings(0).is_err());
        for (confidence, places) in [
            (f32::NAN, &[0.2, 0.9][..]),
            (1.5, &[0.2, 0.9]),
            (0.5, &[0.2]),
            (0.5, &[0.2, 0.9, 1.0]),
            (0.5, &[0.2, f32::NAN]),
            (0.5, &[-0.2, 0.9]),
        ] {
            assert!(reading("ab", confidence, places).readings(1).is_err(), "{confidence} {places:?}");
        }
    }

    #[test]
    fn a_result_that_is_none_is_refused() {
        let tensor = |bytes: &[u8]| Tensor::from_strings(vec![1], [bytes]).unwrap();
        let good = result_tensor(&OcrStepResult::UpsideDown(vec![true, false])).unwrap();
        let bytes = good.strings().unwrap().next().unwrap().to_vec();
        assert!(result_of::<OcrStepResult>(std::slice::from_ref(&good)).is_ok());
        assert!(result_of::<OcrStepResult>(&[good.clone(), good]).is_err());
        assert!(result_of::<OcrStepResult>(&[]).is_err());
        assert!(result_of::<OcrStepResult>(&[Tensor::from_vec(vec![1], vec![1_i64]).unwrap()]).is_err());
        assert!(result_of::<OcrStepResult>(&[tensor(&bytes[..bytes.len() - 1])]).is_err());
        assert!(result_of::<OcrStepResult>(&[tensor(&[&bytes[..], &[0]].concat())]).is_err());
        // A list of 2^63 readings.
        let many = [&[3][..], &[0xff; 8], &[0x7f]].concat();
        assert!(result_of::<OcrStepResult>(&[tensor(&many)]).is_err());
    }

    proptest! {
        #[test]
        fn results_come_back_as_they_went_in(
            corners in proptest::array::uniform4((-5e3_f32..5e3, -5e3_f32..5e3)),
            texts in proptest::collection::vec((".{0,9}", 0.0_f32..1.0, proptest::collection::vec(any::<f32>(), 0..9)), 0..5),
            turned in proptest::collection::vec(any::<bool>(), 0..9),
            size in (1_u32..90, 1_u32..90),
        ) {
            let page = shape(size.0, size.1, QuarterTurns::ThreeQuarters);
            let lines = vec![FoundLine::at(Quadrilateral(corners.map(|(x, y)| Point::new(x, y))))];
            let readings = texts.into_iter().map(|(text, confidence, places)| {
                let scores = places.iter().rev().copied().collect();
                DecodedText { text, confidence, places, scores }
            });
            for result in [
                OcrStepResult::Upright(page),
                OcrStepResult::Lines { page, lines, are_faint: false },
                OcrStepResult::UpsideDown(turned),
                OcrStepResult::Readings(readings.collect()),
            ] {
                prop_assert_eq!(result_of(&[result_tensor(&result).unwrap()]), Ok(result));
            }
        }

        #[test]
        fn steps_come_back_as_they_went_in(step in steps()) {
            let encoded = step.clone().encode(&page()).unwrap();
            prop_assert_eq!(OcrStep::decode(&encoded), Ok(step));
        }

        #[test]
        fn any_bytes_are_a_result_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let tensor = Tensor::from_strings(vec![1], [bytes]).unwrap();
            if let Ok(result) = result_of::<OcrStepResult>(&[tensor]) {
                let _ = result.clone().upright(DRAWN);
                let _ = result.clone().lines(FILE, None, 9);
                let _ = result.clone().upside_down(3);
                let _ = result.readings(1);
            }
        }
    }
}
