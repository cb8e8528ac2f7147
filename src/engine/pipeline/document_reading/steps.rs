//! The steps between the models of one page. Each takes what the step before found and the outputs of a run, and makes the
//! tensors of the next run.

use ledge_base::memory_budget::Hold;
use ledge_base::tensor::{DataType, Tensor};

use super::TextLayer;
use super::document::{Page, PageSize, Source};
use crate::pipeline::image::{self, DecodeLimits, ImageError, Photograph, Rgb8Image};
use crate::pipeline::kind::{AnswerError, InputError};
use crate::pipeline::reading::ctc::{self, Alphabet, Reading};
use crate::pipeline::reading::detection::{DetectionRules, DetectionSize, ProbabilityMap};
use crate::pipeline::reading::fields::Field;
use crate::pipeline::reading::geometry::{Area, Quadrilateral};
use crate::pipeline::reading::line::Line;
use crate::pipeline::reading::line_image::{self, LineImage};
use crate::pipeline::reading::line_turn;
use crate::pipeline::reading::page_turn::{self, Turn};
use crate::pipeline::reading::recognition::{self, Batch, BatchRules};

/// The least score at which a page is turned.
const PAGE_TURN_SCORE_MIN: f32 = 0.5;
/// The widest line in pixels, where it is 48 high; a longer one is made narrower.
const LINE_WIDTH_MAX: usize = 3200;
/// The lines of one run that tells which stand upside down.
pub const LINES_PER_TURN_RUN: usize = 8;
/// Values of pixels from -1 to 1.
const MIDDLE: [f32; 3] = [127.5; 3];

/// The steps of one model.
#[derive(Debug)]
pub struct Reader {
    pub(super) alphabet: Alphabet,
    pub(super) size: DetectionSize,
    pub(super) rules: DetectionRules,
    pub(super) min_confidence: f32,
    pub(super) turns_pages: bool,
    pub(super) turns_lines: bool,
    pub(super) fields: Vec<Field>,
    pub(super) pages_max: usize,
    pub(super) text_layer: TextLayer,
}

/// A page that stands upright.
#[derive(Debug)]
pub struct UprightPage {
    picture: Photograph,
    /// The turn that put it upright.
    turn: Turn,
}

/// A line that was found, and cut out.
#[derive(Debug, Clone)]
pub struct CutLine {
    area: Quadrilateral,
    pub image: LineImage,
}

impl CutLine {
    /// The line as it is read upside down.
    #[must_use]
    pub fn half_turned(&self) -> Self {
        Self { area: self.area.half_turned(), image: self.image.clone().half_turned() }
    }
}

/// Decodes a page that is a picture file.
pub fn decode(file: &[u8], limits: DecodeLimits, hold: &mut Hold) -> Result<Photograph, InputError> {
    image::decode_within(file, limits, &|size| size, hold).map_err(|error| match error {
        ImageError::NoRoom(error) => InputError::NoRoom(error),
        error => InputError::Content(error.to_string()),
    })
}

impl Reader {
    /// Set when the chain has a model that tells how a page stands.
    pub fn turns_pages(&self) -> bool {
        self.turns_pages
    }

    /// Set when the chain has a model that tells which lines stand upside down.
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

    /// When the text that a PDF carries is taken for what stands on a page.
    pub fn text_layer(&self) -> TextLayer {
        self.text_layer
    }

    /// The picture that tells how a page stands.
    pub fn page_turn_input(picture: &Photograph) -> Result<Tensor, InputError> {
        let tensor = page_turn::PREPARATION.prepare(picture, DataType::Fp32, None);
        tensor.map_err(|error| InputError::Content(error.to_string()))
    }

    /// Turns a page upright by the outputs of that run.
    pub fn upright(picture: Photograph, outputs: &[Tensor]) -> Result<UprightPage, AnswerError> {
        let (shape, scores) = floats(outputs)?;
        let direction = page_turn::direction(shape, &scores, PAGE_TURN_SCORE_MIN);
        let direction = direction.ok_or_else(|| unexpected("page_turn", shape))?;
        let picture = match direction.turn {
            Turn::None => picture,
            turn => Photograph::from(turn.apply(picture.into_image())),
        };
        Ok(UprightPage { picture, turn: direction.turn })
    }

    /// The page as it came in.
    pub fn as_it_is(picture: Photograph) -> UprightPage {
        UprightPage { picture, turn: Turn::None }
    }

    /// The picture in which lines are found.
    pub fn find_input(&self, page: &UprightPage) -> Result<Tensor, InputError> {
        let preparation = self.size.preparation(page.size(), MIDDLE, MIDDLE);
        let tensor = preparation.prepare(&page.picture, DataType::Fp32, None);
        tensor.map_err(|error| InputError::Content(error.to_string()))
    }

    /// The lines of a page by the outputs of that run.
    pub fn cut_lines(&self, page: &UprightPage, outputs: &[Tensor]) -> Result<Vec<CutLine>, AnswerError> {
        let (shape, values) = floats(outputs)?;
        let map = ProbabilityMap::new(shape, &values).ok_or_else(|| unexpected("find", shape))?;
        let cut = |area: Quadrilateral| {
            let area = line_image::lying(area);
            CutLine { area, image: LineImage::cut(page.image(), area, LINE_WIDTH_MAX) }
        };
        Ok(map.lines(self.rules, page.size()).into_iter().map(|line| cut(line.area)).collect())
    }

    /// The tensor that tells which of some lines stand upside down.
    pub fn line_turn_input(lines: &[CutLine]) -> Result<Tensor, InputError> {
        let images: Vec<_> = lines.iter().map(|line| &line.image).collect();
        tensor(line_turn::batch(&images)).map(|(tensor, _)| tensor)
    }

    /// Tells which they are by the outputs of that run.
    pub fn upside_down(outputs: &[Tensor]) -> Result<Vec<bool>, AnswerError> {
        let (shape, scores) = floats(outputs)?;
        line_turn::upside_down(shape, &scores).ok_or_else(|| unexpected("line_turn", shape))
    }

    /// The lines that are read in one run each, as positions.
    pub fn groups(lines: &[CutLine]) -> Vec<Vec<usize>> {
        let widths: Vec<_> = lines.iter().map(|line| line.image.width()).collect();
        recognition::group(&widths, BatchRules::default())
    }

    /// The tensor of lines that are read, and the share of it that each line takes.
    pub fn read_input(lines: &[CutLine]) -> Result<(Tensor, Vec<f32>), InputError> {
        let images: Vec<_> = lines.iter().map(|line| &line.image).collect();
        tensor(Batch::of_lines(&images, BatchRules::default()))
    }

    /// The characters of these lines by the outputs of that run.
    pub fn readings(&self, outputs: &[Tensor], filled: &[f32]) -> Result<Vec<Reading>, AnswerError> {
        let (shape, scores) = floats(outputs)?;
        ctc::decode(shape, &scores, filled, &self.alphabet).ok_or_else(|| unexpected("read", shape))
    }

    /// The page of the answer. Lines that were read with too little confidence are left out.
    pub fn page(&self, number: usize, page: &UprightPage, lines: Vec<(CutLine, Reading)>) -> Page {
        let sure = lines.into_iter().filter(|(_, reading)| reading.confidence >= self.min_confidence);
        let lines: Vec<_> = sure.map(|(line, reading)| Line::new(reading, line.area)).collect();
        let lines: Vec<_> = lines.into_iter().filter(|line| !line.text().is_empty()).collect();
        let (width, height) = page.turn.turned_size(page.size());
        let sides = (side(width), side(height));
        let size = PageSize { number, width, height, turned: page.turn.degrees(), source: Source::Models };
        Page::new(size, &lines, &self.fields, |area| page.turn.on_page(area, sides).within(sides))
    }

    /// A page by the lines of its text layer, which lie on it in pixels.
    pub fn page_of_text(
        &self,
        number: usize,
        (width, height): (u32, u32),
        lines: impl Iterator<Item = (String, Area)>,
    ) -> Page {
        let lines: Vec<_> = lines.map(|(text, area)| Line::even(&text, Quadrilateral::upright(area), 1.0)).collect();
        let size = PageSize { number, width, height, turned: 0, source: Source::TextLayer };
        Page::new(size, &lines, &self.fields, |area| area)
    }
}

impl UprightPage {
    fn size(&self) -> (u32, u32) {
        self.picture.size()
    }

    fn image(&self) -> &Rgb8Image {
        self.picture.image()
    }
}

fn side(pixels: u32) -> f32 {
    #[expect(clippy::cast_precision_loss, reason = "sides are far below 2^24")]
    let side = pixels as f32;
    side
}

fn tensor(Batch { shape, values, filled }: Batch) -> Result<(Tensor, Vec<f32>), InputError> {
    let tensor = Tensor::from_vec(shape.to_vec(), values);
    Ok((tensor.map_err(|error| InputError::Content(error.to_string()))?, filled))
}

/// The values of the first output of a run.
fn floats(outputs: &[Tensor]) -> Result<(&[usize], std::borrow::Cow<'_, [f32]>), AnswerError> {
    let output = outputs.first().ok_or_else(|| AnswerError::Outputs("the run gave no output".to_owned()))?;
    let values = output.elements::<f32>();
    let values = values.ok_or_else(|| AnswerError::Outputs(format!("expected FP32, got {}", output.datatype())))?;
    Ok((output.shape(), values))
}

fn unexpected(part: &str, shape: &[usize]) -> AnswerError {
    AnswerError::Outputs(format!("{part} gave an output of shape {shape:?}, which has another meaning"))
}
