//! The steps between the models of one page. Each takes the result of the step before and the outputs of a run, and
//! makes the tensors of the next run.

use std::borrow::Cow;

use ledge_base::memory_budget::{MemoryAccount, MemoryReservation};
use ledge_base::tensor::{DataType, Tensor};
use ledge_documents::{InvoiceXml, TextLayerPolicy};
use serde::{Deserialize, Serialize};

use super::document::{self, ReadPage, TextSource};
use super::step::FoundPage;
use crate::pipeline::content::PipelineInput;
use crate::pipeline::document_reading::page_shape::PageShape;
use crate::pipeline::error::{PostprocessError, PreprocessError};
use crate::pipeline::file_format::UnexpectedFile;
use crate::pipeline::image::{self, DecodeLimits, ImageError, Photograph, Rgb8Image};
use crate::pipeline::ocr::ctc::{self, CtcAlphabet, DecodedText};
use crate::pipeline::ocr::detection::{ProbabilityMap, TextDetectionRules, TextDetectionSize};
use crate::pipeline::ocr::detection_view::DetectionView;
use crate::pipeline::ocr::faint_print;
use crate::pipeline::ocr::fields::DocumentFieldDeclaration;
use crate::pipeline::ocr::geometry::{PageArea, Quadrilateral};
use crate::pipeline::ocr::line::OcrLine;
use crate::pipeline::ocr::line_image::{self, LINE_HEIGHT, LineImage};
use crate::pipeline::ocr::line_turn;
use crate::pipeline::ocr::page_turn::{self, QuarterTurns};
use crate::pipeline::ocr::recognition::{self, COLUMNS_PER_SCORE, LineBatchRules, TextLineBatch, WIDTH_STEP};

/// The least score at which a page is turned.
const PAGE_TURN_SCORE_MIN: f32 = 0.5;
/// The widest line in pixels, where it is 48 high; a longer one is made narrower.
const LINE_WIDTH_MAX: usize = 3200;
/// The most text of a page: the sum of the widths of its lines. A dense page of A4 has 110,000 and takes 5 s of CPU
/// time.
const COLUMNS_MAX: usize = 1_000_000;
/// The least confidence of a line of faint print: of the words that are read with less, one in eight is right.
const FAINT_CONFIDENCE_MIN: f32 = 0.8;
/// The lines of one run of the model that finds upside-down lines.
pub const LINES_PER_TURN_RUN: usize = 8;
/// Values of pixels from -1 to 1.
const MIDDLE: [f32; 3] = [127.5; 3];

/// The steps of one model.
#[derive(Debug)]
pub struct OcrSteps {
    pub(super) alphabet: CtcAlphabet,
    pub(super) size: TextDetectionSize,
    pub(super) rules: TextDetectionRules,
    pub(super) min_confidence: f32,
    pub(super) turns_pages: bool,
    pub(super) turns_lines: bool,
    pub(super) fields: Vec<DocumentFieldDeclaration>,
    pub(super) pages_max: usize,
    pub(super) text_layer: TextLayerPolicy,
}

/// A page that stands upright.
#[derive(Debug)]
pub struct UprightPage {
    picture: Photograph,
    /// The rotation that put it upright.
    turn: QuarterTurns,
}

/// A line that was found. Its picture is cut out of the page where it is needed: those of a whole page may take half a
/// gigabyte.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FoundLine {
    pub(super) area: Quadrilateral,
}

impl FoundLine {
    /// A line around which these corners lie.
    pub fn at(area: Quadrilateral) -> Self {
        Self { area: line_image::lying(area) }
    }

    /// The line as it is read upside down.
    #[must_use]
    pub fn half_turned(self) -> Self {
        Self { area: self.area.half_turned() }
    }

    fn width(self) -> usize {
        LineImage::width_of(self.area, LINE_WIDTH_MAX)
    }

    /// Returns true if its corners are finite, and no farther from a page of this size than a rectangle around a text
    /// on it.
    pub(super) fn is_near(&self, (width, height): (u32, u32)) -> bool {
        let longer = side(width.max(height));
        let near = -2.0 * longer..=3.0 * longer;
        self.area.0.iter().all(|corner| near.contains(&corner.x) && near.contains(&corner.y))
    }
}

/// Decodes a page that is a picture file.
pub fn decode(file: &[u8], limits: DecodeLimits, hold: &mut MemoryReservation) -> Result<Photograph, PreprocessError> {
    image::decode_within(file, limits, &|size| size, hold).map_err(|error| match error {
        ImageError::NoRoom(error) => PreprocessError::NoRoom(error),
        // A document may be more than an image.
        ImageError::Unrecognized(_) => {
            PreprocessError::Content(UnexpectedFile::new(PipelineInput::Document, file).to_string())
        }
        error => PreprocessError::Content(error.to_string()),
    })
}

impl OcrSteps {
    /// Set when the chain has a model for the orientation of pages.
    pub fn turns_pages(&self) -> bool {
        self.turns_pages
    }

    /// Set when the chain has a model that finds upside-down lines.
    pub fn turns_lines(&self) -> bool {
        self.turns_lines
    }

    /// The most pages of a document.
    pub fn pages_max(&self) -> usize {
        self.pages_max
    }

    /// The most lines of a page.
    pub fn lines_max(&self) -> usize {
        self.rules.lines_max
    }

    /// The pages for which the text layer of a PDF is used in place of OCR.
    pub fn text_layer(&self) -> TextLayerPolicy {
        self.text_layer
    }

    /// The input of the model that finds the orientation of a page.
    pub fn page_turn_input(page: &UprightPage) -> Result<Tensor, PreprocessError> {
        let tensor = page_turn::PREPARATION.prepare(&page.picture, DataType::Fp32, None);
        tensor.map_err(|error| PreprocessError::Content(error.to_string()))
    }

    /// Turns a page upright by the outputs of that run.
    pub fn upright(page: &UprightPage, outputs: &[Tensor]) -> Result<UprightPage, PostprocessError> {
        let (shape, scores) = floats(outputs)?;
        let direction = page_turn::direction(shape, &scores, PAGE_TURN_SCORE_MIN);
        let direction = direction.ok_or_else(|| unexpected("page_turn", shape))?;
        let picture = match direction.turn {
            QuarterTurns::None => page.picture.clone(),
            turn => Photograph::from(turn.apply(page.image().clone())),
        };
        Ok(UprightPage { picture, turn: direction.turn })
    }

    /// The page as it came in.
    pub fn as_it_is(picture: Photograph) -> UprightPage {
        UprightPage { picture, turn: QuarterTurns::None }
    }

    /// The picture in which lines are found. `account` pays for a part of the page that is cut out.
    pub fn find_input(
        &self,
        page: &UprightPage,
        view: DetectionView,
        account: &MemoryAccount,
    ) -> Result<Tensor, PreprocessError> {
        let wrong = |error: &dyn std::fmt::Display| PreprocessError::Content(error.to_string());
        let _hold = account.take(view.bytes())?;
        let picture = view.of(&page.picture).ok_or_else(|| wrong(&"the view is not on the page"))?;
        let preparation = self.size.preparation(picture.size(), MIDDLE, MIDDLE);
        let tensor = preparation.prepare(&picture, DataType::Fp32, None).map_err(|error| wrong(&error))?;
        if !view.is_strengthened {
            return Ok(tensor);
        }
        let mut planes = tensor.elements::<f32>().map(Cow::into_owned).unwrap_or_default();
        faint_print::strengthen(&mut planes, preparation.size);
        Tensor::from_vec(tensor.shape().to_vec(), planes).map_err(|error| wrong(&error))
    }

    /// The lines of a page by the outputs of that run.
    pub fn found_lines(
        &self,
        page: &UprightPage,
        view: DetectionView,
        outputs: &[Tensor],
    ) -> Result<Vec<FoundLine>, PostprocessError> {
        let (shape, values) = floats(outputs)?;
        let map = ProbabilityMap::new(shape, &values).ok_or_else(|| unexpected("find", shape))?;
        let lines = map.lines(self.rules, view.size(page.size())).into_iter();
        Ok(lines.map(|line| FoundLine::at(line.area.moved(view.origin()))).collect())
    }

    /// Returns true if most of these lines of a page are faint, and if there are none.
    pub fn are_faint(page: &UprightPage, lines: &[FoundLine]) -> bool {
        faint_print::is_faint(page.image(), &areas(lines))
    }

    /// The view of a page in which lines are looked for again after this one.
    pub fn next_view(&self, view: DetectionView, found: &FoundPage) -> Option<DetectionView> {
        view.next(self.size, found.shape.size(), &areas(&found.lines), found.are_faint)
    }

    /// Refuses a page with more text than a page has.
    pub fn check_length(lines: &[FoundLine]) -> Result<(), PreprocessError> {
        let columns: usize = lines.iter().map(|line| line.width()).sum();
        if columns <= COLUMNS_MAX {
            return Ok(());
        }
        Err(PreprocessError::Content(format!(
            "the page has {} lines, which are {columns} pixels long where they are 48 high: at most {COLUMNS_MAX} are \
             read. Divide the page",
            lines.len()
        )))
    }

    /// The memory of lines that are cut out of a page, and of their tensor, for the model that finds upside-down lines.
    pub fn bytes_of_turned(lines: &[FoundLine]) -> usize {
        bytes_of_cut(lines, line_turn::WIDTH) + lines.len() * tensor_bytes(line_turn::WIDTH)
    }

    /// The memory of lines that are cut out of a page, and of their tensor, to be read.
    pub fn bytes_of_read(lines: &[FoundLine]) -> usize {
        bytes_of_cut(lines, LINE_WIDTH_MAX) + lines.len() * tensor_bytes(widest(lines))
    }

    /// The memory of the scores that a model gives for lines that are read, in bytes: one for each character that it
    /// knows, at each of the places on a line.
    pub fn bytes_of_scores(&self, lines: &[FoundLine]) -> usize {
        lines.len() * widest(lines) / COLUMNS_PER_SCORE * self.alphabet.count() * size_of::<f32>()
    }

    /// The input of the model that finds upside-down lines. The pictures of the lines count in `account`.
    pub fn line_turn_input(
        page: &UprightPage,
        lines: &[FoundLine],
        account: &MemoryAccount,
    ) -> Result<Tensor, PreprocessError> {
        let (images, _hold) = cut(page, lines, line_turn::WIDTH, Self::bytes_of_turned(lines), account)?;
        tensor(line_turn::batch(&images.iter().collect::<Vec<_>>())).map(|(tensor, _)| tensor)
    }

    /// Finds the upside-down lines by the outputs of that run.
    pub fn upside_down(outputs: &[Tensor]) -> Result<Vec<bool>, PostprocessError> {
        let (shape, scores) = floats(outputs)?;
        line_turn::upside_down(shape, &scores).ok_or_else(|| unexpected("line_turn", shape))
    }

    /// The lines that are read in one run each, as positions.
    pub fn groups(lines: &[FoundLine]) -> Vec<Vec<usize>> {
        let widths: Vec<_> = lines.iter().map(|line| line.width()).collect();
        recognition::group(&widths, LineBatchRules::default())
    }

    /// The tensor of lines that are read, and the share of it that each line takes. `account` pays for their pictures.
    pub fn read_input(
        page: &UprightPage,
        lines: &[FoundLine],
        account: &MemoryAccount,
    ) -> Result<(Tensor, Vec<f32>), PreprocessError> {
        let (images, _hold) = cut(page, lines, LINE_WIDTH_MAX, Self::bytes_of_read(lines), account)?;
        tensor(TextLineBatch::of_lines(&images.iter().collect::<Vec<_>>(), LineBatchRules::default()))
    }

    /// The characters of these lines by the outputs of that run.
    pub fn readings(&self, outputs: &[Tensor], filled: &[f32]) -> Result<Vec<DecodedText>, PostprocessError> {
        let (shape, scores) = floats(outputs)?;
        ctc::decode(shape, &scores, filled, &self.alphabet).ok_or_else(|| unexpected("read", shape))
    }

    /// The page of the answer. Lines that were read with too little confidence are left out, and all lines of a
    /// strengthened view if these are most: then it is the print on the back that shows through, or none.
    pub fn page(
        &self,
        number: usize,
        page: PageShape,
        view: DetectionView,
        lines: Vec<(FoundLine, DecodedText)>,
    ) -> ReadPage {
        let min_confidence =
            if view.is_strengthened { self.min_confidence.max(FAINT_CONFIDENCE_MIN) } else { self.min_confidence };
        let all = lines.len();
        let mut sure: Vec<_> = lines.into_iter().filter(|(_, reading)| reading.confidence >= min_confidence).collect();
        if view.is_strengthened && 2 * sure.len() < all {
            sure.clear();
        }
        let lines: Vec<_> = sure.into_iter().map(|(line, reading)| OcrLine::new(reading, line.area)).collect();
        let lines: Vec<_> = lines.into_iter().filter(|line| !line.text().is_empty()).collect();
        ReadPage::new(number, page.turn.turned_size(page.size()), page.turn, TextSource::Models, lines)
    }

    /// A page by the lines of its text layer, which lie on it in pixels.
    pub fn page_of_text(
        &self,
        number: usize,
        size: (u32, u32),
        lines: impl Iterator<Item = (String, PageArea)>,
    ) -> ReadPage {
        let lines: Vec<_> = lines.map(|(text, area)| OcrLine::even(&text, Quadrilateral::upright(area), 1.0)).collect();
        ReadPage::new(number, size, QuarterTurns::None, TextSource::TextLayer, lines)
    }

    /// The answer to a document.
    pub fn results(&self, pages: &[ReadPage], invoice: Option<&InvoiceXml>) -> Result<Vec<Tensor>, PostprocessError> {
        document::results(pages, &self.fields, invoice)
    }
}

fn areas(lines: &[FoundLine]) -> Vec<Quadrilateral> {
    lines.iter().map(|line| line.area).collect()
}

fn widest(lines: &[FoundLine]) -> usize {
    lines.iter().map(|line| line.width()).max().unwrap_or(0).next_multiple_of(WIDTH_STEP)
}

/// The bytes of a line of this width in a tensor of floats.
fn tensor_bytes(width: usize) -> usize {
    width * LINE_HEIGHT * 3 * size_of::<f32>()
}

/// The bytes of lines that are cut out, no wider than `width_max`.
fn bytes_of_cut(lines: &[FoundLine], width_max: usize) -> usize {
    lines.iter().map(|line| line.width().min(width_max)).sum::<usize>() * LINE_HEIGHT * 3
}

/// Cuts lines out of a page, no wider than `width_max`. `account` pays for `bytes`, for them and for their tensor.
fn cut(
    page: &UprightPage,
    lines: &[FoundLine],
    width_max: usize,
    bytes: usize,
    account: &MemoryAccount,
) -> Result<(Vec<LineImage>, MemoryReservation), PreprocessError> {
    let hold = account.take(bytes)?;
    Ok((lines.iter().map(|line| LineImage::cut(page.image(), line.area, width_max)).collect(), hold))
}

impl UprightPage {
    fn size(&self) -> (u32, u32) {
        self.picture.size()
    }

    fn image(&self) -> &Rgb8Image {
        self.picture.image()
    }

    pub(super) fn shape(&self) -> PageShape {
        let (width, height) = self.size();
        PageShape { width, height, turn: self.turn }
    }

    /// The bytes of its pixels.
    pub(super) fn bytes(&self) -> usize {
        self.image().pixels().len()
    }

    pub(super) fn shares_bytes_with(&self, other: &Self) -> bool {
        std::ptr::eq(self.image().pixels(), other.image().pixels())
    }
}

fn side(pixels: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "sides are far below 2^24")]
    let side = pixels as f32;
    side
}

fn tensor(TextLineBatch { shape, values, filled }: TextLineBatch) -> Result<(Tensor, Vec<f32>), PreprocessError> {
    let tensor = Tensor::from_vec(shape.to_vec(), values);
    Ok((tensor.map_err(|error| PreprocessError::Content(error.to_string()))?, filled))
}

/// The values of the first output of a run.
fn floats(outputs: &[Tensor]) -> Result<(&[usize], Cow<'_, [f32]>), PostprocessError> {
    let output = outputs.first().ok_or_else(|| PostprocessError::Outputs("the run gave no output".to_owned()))?;
    let values = output.elements::<f32>();
    let values =
        values.ok_or_else(|| PostprocessError::Outputs(format!("expected FP32, got {}", output.datatype())))?;
    Ok((output.shape(), values))
}

fn unexpected(part: &str, shape: &[usize]) -> PostprocessError {
    PostprocessError::Outputs(format!("{part} gave an output of shape {shape:?}, which has another meaning"))
}

/// Gives the steps of a page outputs of any shape and values; true when lines were found. Boxes of the answer lie on
/// the page, and no tensor is larger than its lines. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_steps(data: &[u8]) -> bool {
    let Some((head, rest)) = data.split_at_checked(6) else { return false };
    let value = |byte: &u8| match byte {
        255 => f32::NAN,
        254 => f32::INFINITY,
        byte => f32::from(*byte) / 250.0,
    };
    let values: Vec<f32> = rest.iter().map(value).collect();
    let side = |index: usize| head.get(index).map_or(0, |byte| usize::from(*byte % 64));
    // A shape that the values fill, unless the first byte is odd.
    let wide = side(1).max(1);
    let shape = |channels: usize| vec![1, channels, values.len() / wide + usize::from(side(0) % 2 == 1), wide];
    let output = |shape: Vec<usize>| {
        let count = shape.iter().product::<usize>();
        Tensor::from_vec(shape, values.iter().copied().chain(std::iter::repeat(0.5)).take(count).collect::<Vec<_>>())
    };
    let pixels = |index| u32::try_from(side(index)).unwrap_or(0) + 1;
    let (width, height) = (pixels(2), pixels(3));
    let Some(picture) = Rgb8Image::new(
        width,
        height,
        vec![head.get(4).copied().unwrap_or(0); 3 * (width as usize) * (height as usize)],
    ) else {
        return false;
    };
    let reader = OcrSteps {
        alphabet: CtcAlphabet::from_lines("a\nb\n \n"),
        size: TextDetectionSize { shorter_side_min: 32, longer_side_max: 64 },
        rules: TextDetectionRules { lines_max: 20, ..TextDetectionRules::default() },
        min_confidence: 0.0,
        turns_pages: true,
        turns_lines: true,
        fields: Vec::new(),
        pages_max: 1,
        text_layer: TextLayerPolicy::Never,
    };
    let account = MemoryAccount::unlimited();
    let turns = output(vec![1, 4]).ok();
    let page = OcrSteps::as_it_is(picture.into());
    let Some(page) = turns.and_then(|turns| OcrSteps::upright(&page, &[turns]).ok()) else { return false };
    let Some(lines) =
        output(shape(1)).ok().and_then(|map| reader.found_lines(&page, DetectionView::default(), &[map]).ok())
    else {
        return false;
    };
    assert!(lines.len() <= 20);
    let _ = OcrSteps::check_length(&lines);
    if let Ok(tensor) = OcrSteps::line_turn_input(&page, &lines, &account) {
        assert_eq!(tensor.shape(), [lines.len(), 3, LINE_HEIGHT, line_turn::WIDTH]);
    }
    let mut read = Vec::new();
    for group in OcrSteps::groups(&lines) {
        let of_group: Vec<_> = group.iter().filter_map(|index| lines.get(*index).copied()).collect();
        let Ok((tensor, filled)) = OcrSteps::read_input(&page, &of_group, &account) else { continue };
        assert!(tensor.shape().last().is_some_and(|width| *width <= LINE_WIDTH_MAX.next_multiple_of(WIDTH_STEP)));
        let scores = output(vec![of_group.len(), side(5) + 1, 5]);
        let readings = scores.ok().and_then(|scores| reader.readings(&[scores], &filled).ok());
        read.extend(of_group.into_iter().zip(readings.unwrap_or_default()));
    }
    let answer = reader.results(&[reader.page(1, page.shape(), DetectionView::default(), read)], None).ok();
    let answer = answer.and_then(|results| Some(results.get(1)?.strings()?.next()?.to_vec())).unwrap_or_default();
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap_or_default();
    let answer = answer.pointer("/pages/0").cloned().unwrap_or_default();
    let sides = ["width", "height"].map(|side| answer.get(side).and_then(serde_json::Value::as_f64).unwrap_or(0.0));
    let corners = answer
        .get("lines")
        .and_then(serde_json::Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|line| line.get("box")?.as_array())
        .flatten();
    for corner in corners {
        for (place, side) in corner.as_array().into_iter().flatten().zip(sides) {
            assert!(place.as_f64().is_some_and(|place| (0.0..=side).contains(&place)), "{corner} of {sides:?}");
        }
    }
    !lines.is_empty()
}
