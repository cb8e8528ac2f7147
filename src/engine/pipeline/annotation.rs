//! Annotate: draws a box and a label around each object of a photograph, outlines zones, and blurs the places that must
//! not be visible.

mod canvas;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use ledge_base::memory_budget::MemoryReservation;

use self::canvas::{Canvas, FontSize, PixelArea, RgbColor};
use super::detection::{Detection, DetectionBox};
use super::image::{self, DecodeLimits, ImageError, ImageFormat};

/// The quality of an annotated JPEG, 1 to 100. Edges of boxes and letters stay sharp from here on.
const JPEG_QUALITY: u8 = 85;

/// Colours of boxes, far apart for most kinds of colour vision (Okabe and Ito, "Color Universal Design", 2008, without
/// black).
const COLORS: [RgbColor; 7] =
    [[230, 159, 0], [86, 180, 233], [0, 158, 115], [240, 228, 66], [0, 114, 178], [213, 94, 0], [204, 121, 167]];

/// A line of another colour at each side of an outline, so that it is seen on any background.
const BORDER: RgbColor = [0, 0, 0];

/// The share of the shorter side of the picture that a line of text takes.
const TEXT_SHARE: u32 = 24;

/// The same of the name of a field.
const FIELD_NAME_SHARE: u32 = 48;

/// The colour of the outline of a text.
const LINE_COLOR: RgbColor = [0, 158, 115];

/// A format of annotated photographs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFormat {
    Jpeg,
    Png,
}

impl PictureFormat {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Jpeg => ImageFormat::Jpeg.content_type(),
            Self::Png => ImageFormat::Png.content_type(),
        }
    }
}

/// A text to outline, however it stands.
#[derive(Debug, Clone, PartialEq)]
pub struct TextOutline {
    /// Its corners in pixels, clockwise, each as x and y.
    pub corners: [[f32; 2]; 4],
    /// The name of the field that has this value.
    pub field: Option<String>,
}

/// A part of a picture to outline.
#[derive(Debug, Clone, PartialEq)]
pub struct ZoneOutline {
    pub name: String,
    /// Its corners in pixels, each as x and y.
    pub corners: Vec<[f32; 2]>,
}

/// Changes to make in a photograph.
#[derive(Debug, Clone, Copy)]
pub struct Annotation<'a> {
    /// The objects that get a box with a label.
    pub detections: &'a [Detection],
    /// The texts that get an outline, and those of fields their names.
    pub texts: &'a [TextOutline],
    /// The parts that get an outline with their name, below the boxes.
    pub zones: &'a [ZoneOutline],
    /// The places to blur, below everything else.
    pub blurred: &'a [DetectionBox],
    pub format: PictureFormat,
}

/// The share of a person's box, from its top, that is blurred. The head takes more than the upper quarter when a person
/// sits, or when the legs are not in the picture.
const HEAD_SHARE: f64 = 0.4;

/// The share of its width and height by which the box of a face is larger at each side when it is blurred: it ends at
/// the forehead and at the lips of some.
const FACE_MARGIN: f64 = 0.2;

/// The label of faces in lists of labels to blur.
const FACE: &str = "face";

/// Returns true if a list of labels to blur needs a model of faces.
pub fn blurs_faces(labels: &[String]) -> bool {
    labels.iter().any(|label| is_face(label))
}

/// Returns true if a label stands for each face that a model of faces finds.
pub fn is_face(label: &str) -> bool {
    label == FACE
}

/// Gives the detections of a model of faces the label that lists of labels to blur use for faces.
pub fn as_faces(found: impl Iterator<Item = Detection>) -> impl Iterator<Item = Detection> {
    found.map(|face| Detection { label: FACE.to_owned(), ..face })
}

/// The places of a photograph that a list of labels wants blurred: of a `person` the head, which is in the upper part
/// of its box, of a face its box with a margin, and of other labels the box. They may reach beyond the photograph.
pub fn blurred_places(labels: &[String], detections: &[Detection]) -> Vec<DetectionBox> {
    let wanted = detections.iter().filter(|detection| labels.contains(&detection.label));
    let place = |Detection { label, area, .. }: &Detection| match label.as_str() {
        "person" => DetectionBox { height: area.height * HEAD_SHARE, ..*area },
        FACE => {
            let (wide, high) = (area.width * FACE_MARGIN, area.height * FACE_MARGIN);
            let (width, height) = (area.width + 2.0 * wide, area.height + 2.0 * high);
            DetectionBox { x: area.x - wide, y: area.y - high, width, height }
        }
        _ => *area,
    };
    wanted.map(place).collect()
}

/// The reason why there is no annotated photograph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    #[error(transparent)]
    Photograph(#[from] ImageError),
    #[error("the annotated photograph cannot be written as {format}: {reason}")]
    Encode { format: &'static str, reason: String },
}

/// Decodes a photograph, draws on it, and encodes it in the format wanted, without the metadata of the photograph: no
/// place, no time, no camera. It takes tens of milliseconds. `hold` reserves the memory of the pixels and the answer.
pub fn annotate(
    photograph: &[u8],
    annotation: &Annotation<'_>,
    limits: DecodeLimits,
    hold: &mut MemoryReservation,
) -> Result<Vec<u8>, AnnotationError> {
    let picture = image::decode_within(photograph, limits, &|size| size, hold)?.into_image();
    // A JPEG is smaller than its pixels. The encoder of PNG has up to three copies of them.
    let copies = if annotation.format == PictureFormat::Png { 3 } else { 1 };
    hold.grow(copies * picture.pixels().len()).map_err(ImageError::from)?;
    let (width, height) = (picture.width(), picture.height());
    let mut canvas = Canvas::new(picture);
    draw(&mut canvas, annotation);
    encode(canvas.pixels(), (width, height), annotation.format)
}

fn draw(canvas: &mut Canvas, annotation: &Annotation<'_>) {
    for place in annotation.blurred {
        let area = canvas.area(*place);
        canvas.blur(area);
    }

    zones(canvas, annotation.zones);
    let size = FontSize::for_lines_of(canvas.shorter_side() / TEXT_SHARE);
    // The best last: its label is on top.
    for detection in annotation.detections.iter().rev() {
        let (area, color) = (canvas.area(detection.area), color_of(&detection.label));
        outline(canvas, area, color, size.line_width());
        tag(canvas, area, color, size, &Caption(detection).to_string());
    }
    texts(canvas, annotation.texts);
}

/// Outlines zones: a thin coloured line in a dark one. Its width distinguishes it from the box of an object.
fn zones(canvas: &mut Canvas, zones: &[ZoneOutline]) {
    let size = FontSize::for_lines_of(canvas.shorter_side() / FIELD_NAME_SHARE);
    let thin = size.line_width().max(1);
    for ZoneOutline { name, corners } in zones {
        let color = color_of(name);
        canvas.polygon(corners, thin + 2, BORDER);
        canvas.polygon(corners, thin, color);
        tag(canvas, canvas.around(corners), color, size, name);
    }
}

/// Outlines texts: all of them in one colour, then those of fields in others, with their names.
fn texts(canvas: &mut Canvas, texts: &[TextOutline]) {
    // The names of fields must not hide other text, so their letters are as small as can be read.
    let size = FontSize::for_lines_of(canvas.shorter_side() / FIELD_NAME_SHARE);
    let thin = (size.line_width() / 2).max(1);
    for text in texts.iter().filter(|text| text.field.is_none()) {
        canvas.polygon(&text.corners, thin, LINE_COLOR);
    }
    for (text, field) in texts.iter().filter_map(|text| Some((text, text.field.as_deref()?))) {
        let color = color_of(field);
        canvas.polygon(&text.corners, 2 * thin, color);
        tag(canvas, canvas.around(&text.corners), color, size, field);
    }
}

/// The text of a box: `person 87%`.
struct Caption<'a>(&'a Detection);

impl fmt::Display for Caption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:.0}%", self.0.label, self.0.score * 100.0)
    }
}

/// The colour of a label: the same in each picture.
fn color_of(label: &str) -> RgbColor {
    let mut hasher = DefaultHasher::new();
    label.hash(&mut hasher);
    let index = hasher.finish() % COLORS.len() as u64;
    usize::try_from(index).ok().and_then(|index| COLORS.get(index)).copied().unwrap_or(BORDER)
}

/// Draws the edges of `area`, inside of it: a coloured line between two thin dark ones.
fn outline(canvas: &mut Canvas, area: PixelArea, color: RgbColor, line: usize) {
    let thin = line.div_ceil(3);
    for (inset, width, color) in [(0, line + 2 * thin, BORDER), (thin, line, color)] {
        let PixelArea { left, top, right, bottom } = area.inset(inset);
        canvas.fill(PixelArea { left, top, right, bottom: bottom.min(top + width) }, color);
        canvas.fill(PixelArea { left, top: top.max(bottom.saturating_sub(width)), right, bottom }, color);
        canvas.fill(PixelArea { left, top, right: right.min(left + width), bottom }, color);
        canvas.fill(PixelArea { left: left.max(right.saturating_sub(width)), top, right, bottom }, color);
    }
}

/// Writes `text` on a filled rectangle above the box, or at its upper edge where there is no room above it.
fn tag(canvas: &mut Canvas, of: PixelArea, color: RgbColor, size: FontSize, text: &str) {
    let padding = size.line_width();
    let (width, height) = (size.width_of(text) + 2 * padding, size.line_height());
    let left = of.left.min(canvas.width().saturating_sub(width));
    let top = of.top.checked_sub(height).unwrap_or(of.top);
    canvas.fill(PixelArea { left, top, right: left + width, bottom: top + height }, color);
    let [red, green, blue] = color.map(u32::from);
    // The brightness that the eye sees (ITU-R BT.601).
    let is_bright = 299 * red + 587 * green + 114 * blue > 140_000;
    canvas.text((left + padding, top), size, if is_bright { [0; 3] } else { [255; 3] }, text);
}

fn encode(pixels: &[u8], (width, height): (u32, u32), format: PictureFormat) -> Result<Vec<u8>, AnnotationError> {
    let mut encoded = Vec::new();
    let failed = |reason: String| AnnotationError::Encode { format: format.content_type(), reason };
    match format {
        PictureFormat::Jpeg => ::image::codecs::jpeg::JpegEncoder::new_with_quality(&mut encoded, JPEG_QUALITY)
            .encode(pixels, width, height, ::image::ExtendedColorType::Rgb8)
            .map_err(|error| failed(error.to_string()))?,
        PictureFormat::Png => {
            let mut writer = png::Encoder::new(&mut encoded, width, height);
            writer.set_color(png::ColorType::Rgb);
            writer.set_compression(png::Compression::Fast);
            let written = writer.write_header().and_then(|mut writer| writer.write_image_data(pixels));
            written.map_err(|error| failed(error.to_string()))?;
        }
    }
    Ok(encoded)
}

#[cfg(test)]
mod tests;
