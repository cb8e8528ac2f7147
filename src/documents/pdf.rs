//! Pages of a PDF file: the content of a page, and its picture.

use hayro::hayro_interpret::font::{Glyph as FontGlyph, GlyphRun};
use hayro::hayro_interpret::hayro_cmap::BfString;
use hayro::hayro_interpret::{
    BlendMode, ClipPath, Context, Device, DrawMode, DrawProps, Image, ImageDrawProps, InterpreterCache,
    InterpreterSettings, SoftMask, interpret_page,
};
use hayro::hayro_syntax::page::Page;
use hayro::hayro_syntax::{DecryptionError, LoadPdfError, Pdf};
use hayro::kurbo::{Affine, BezPath, Point, Rect, Shape as _};
use hayro::vello_cpu::color::palette::css::WHITE;
use hayro::{PixmapSettings, RenderCache, RenderSettings};

#[cfg(any(test, feature = "fuzzing"))]
use crate::invoice_xml::InvoiceXml;
use crate::order::{DocumentDefect, DocumentLimits, TextLayerPolicy, TextLine};
use crate::page_work;
use crate::text_layer::{self, Glyph};

/// The resolution of a page: letters of a small print are some 20 pixels high, as the models know them.
const DOTS_PER_INCH: f64 = 200.0;
/// The units of a page: points.
const POINTS_PER_INCH: f64 = 72.0;
/// The longest side of a page in pixels.
const SIDE_MAX: f64 = 16_000.0;
/// The most pixels of an image on a page: A3 at 600 dpi has 70 million.
const IMAGE_PIXELS_MAX: u64 = 100_000_000;
/// The most characters of a page.
const CHARACTERS_MAX: usize = 200_000;
/// The least characters of a text layer that is taken for the page.
const CHARACTERS_MIN: usize = 20;
/// The share of the page that images cover where it is a scan.
const SCAN_COVER: f64 = 0.5;

/// A page, as a picture or by its text layer.
pub(crate) enum DrawnPage {
    /// Three bytes a pixel, rows from the top.
    Picture {
        width: u32,
        height: u32,
        pixels: Vec<u8>,
    },
    Text {
        width: u32,
        height: u32,
        lines: Vec<TextLine>,
    },
}

/// A PDF file that can be opened.
pub(crate) struct PdfFile {
    pdf: Pdf,
    limits: DocumentLimits,
}

impl PdfFile {
    pub fn open(file: Vec<u8>, limits: DocumentLimits) -> Result<Self, DocumentDefect> {
        let pdf = Pdf::new(file).map_err(|error| match error {
            LoadPdfError::Decryption(DecryptionError::PasswordProtected) => DocumentDefect::Encrypted,
            LoadPdfError::Decryption(_) => DocumentDefect::UnknownEncryption,
            LoadPdfError::Invalid => DocumentDefect::Damaged,
        })?;
        match pdf.pages().len() {
            0 => Err(DocumentDefect::Empty),
            pages if pages > limits.pages_max => Err(DocumentDefect::Pages { pages, most: limits.pages_max }),
            _ => Ok(Self { pdf, limits }),
        }
    }

    pub fn pages(&self) -> usize {
        self.pdf.pages().len()
    }

    pub fn pdf(&self) -> &Pdf {
        &self.pdf
    }

    /// Draws page after page.
    pub fn draw<E: From<DocumentDefect>>(
        &self,
        text_layer: TextLayerPolicy,
        mut take: impl FnMut(DrawnPage) -> Result<(), E>,
    ) -> Result<(), E> {
        let (settings, cache) = (InterpreterSettings::default(), RenderCache::new());
        for (page, number) in self.pdf.pages().iter().zip(1..) {
            let (size, scale) = size(page, number, self.limits)?;
            page_work::check(page, number)?;
            let survey = SurveyedPage::of(page, number, scale, &settings)?;
            let lines = survey.text(text_layer, size).filter(|lines| lines.len() <= self.limits.lines_max);
            let drawn = match lines {
                Some(lines) => DrawnPage::Text { width: size.0, height: size.1, lines },
                None => picture(page, scale, &settings, &cache),
            };
            take(drawn)?;
        }
        Ok(())
    }
}

/// The pixels of a page in each direction, and the pixels of a point.
pub(crate) fn size(
    page: &Page<'_>,
    number: usize,
    limits: DocumentLimits,
) -> Result<((u32, u32), f64), DocumentDefect> {
    let (width, height) = page.render_dimensions();
    let (wide, high) = (f64::from(width), f64::from(height));
    let wrong = || DocumentDefect::Size { page: number, width: width.to_string(), height: height.to_string() };
    if !(wide.is_finite() && high.is_finite() && wide > 0.0 && high > 0.0) {
        return Err(wrong());
    }
    #[expect(clippy::cast_precision_loss, reason = "megapixels")]
    let most = limits.pixels_max as f64;
    let scale = (DOTS_PER_INCH / POINTS_PER_INCH).min((most / wide / high).sqrt()).min(SIDE_MAX / wide.max(high));
    let pixels = |points: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to SIDE_MAX")]
        let pixels = (points * scale).floor() as u32;
        Some(pixels).filter(|pixels| *pixels > 0)
    };
    match (pixels(wide), pixels(high)) {
        (Some(width), Some(height)) => Ok(((width, height), scale)),
        _ => Err(wrong()),
    }
}

/// Returns true where a page has an invisible text, as a scan that was read before.
pub(crate) fn has_hidden_text(page: &Page<'_>, number: usize, scale: f64) -> Result<bool, DocumentDefect> {
    page_work::check(page, number)?;
    let survey = SurveyedPage::of(page, number, scale, &InterpreterSettings::default())?;
    Ok(survey.glyphs.iter().filter(|glyph| !glyph.is_visible).count() >= CHARACTERS_MIN)
}

fn picture<'a>(page: &'a Page<'a>, scale: f64, settings: &InterpreterSettings, cache: &RenderCache<'a>) -> DrawnPage {
    #[expect(clippy::cast_possible_truncation, reason = "some 2.8")]
    let scale = scale as f32;
    let pixmap = PixmapSettings { x_scale: scale, y_scale: scale, bg_color: WHITE };
    let drawn = hayro::render(page, cache, settings, &RenderSettings::default(), &pixmap);
    let pixels = drawn.data().iter().flat_map(|pixel| [pixel.r, pixel.g, pixel.b]).collect();
    DrawnPage::Picture { width: drawn.width().into(), height: drawn.height().into(), pixels }
}

/// The kinds of content on a page, found without drawing it.
struct SurveyedPage {
    page: usize,
    glyphs: Vec<Glyph>,
    /// The area of the images, in square pixels.
    covered: f64,
    /// The whole page in pixels.
    area: Rect,
    mistake: Option<DocumentDefect>,
}

impl SurveyedPage {
    fn of(page: &Page<'_>, number: usize, scale: f64, settings: &InterpreterSettings) -> Result<Self, DocumentDefect> {
        let (width, height) = page.render_dimensions();
        let area = Rect::new(0.0, 0.0, f64::from(width) * scale, f64::from(height) * scale);
        let mut survey = Self { page: number, glyphs: Vec::new(), covered: 0.0, area, mistake: None };
        let transform = Affine::scale(scale) * to_kurbo(page);
        let cache = InterpreterCache::new();
        let mut context = Context::new(transform, area, &cache, page.xref(), settings.clone());
        interpret_page(page, &mut context, &mut survey);
        match survey.mistake {
            Some(mistake) => Err(mistake),
            None => Ok(survey),
        }
    }

    /// The lines of the text layer, where it stands for the page.
    fn text(&self, text_layer: TextLayerPolicy, size: (u32, u32)) -> Option<Vec<TextLine>> {
        let visible = || self.glyphs.iter().filter(|glyph| glyph.is_visible);
        match text_layer {
            TextLayerPolicy::Always if !self.glyphs.is_empty() => Some(text_layer::lines(self.glyphs.iter(), size)),
            TextLayerPolicy::Auto => {
                let is_scan = self.covered >= SCAN_COVER * self.area.area();
                let is_layer = !is_scan && visible().count() >= CHARACTERS_MIN && text_layer::is_plain(visible());
                is_layer.then(|| text_layer::lines(visible(), size))
            }
            _ => None,
        }
    }

    fn refuse(&mut self, mistake: DocumentDefect) {
        self.mistake.get_or_insert(mistake);
    }
}

/// The map from points of a page to those of its upright picture, whose rows begin at the top.
pub(crate) fn to_kurbo(page: &Page<'_>) -> Affine {
    use hayro::hayro_interpret::util::TransformExt as _;
    page.initial_transform(true).to_kurbo()
}

/// The text of a character, if the file says it. Some files say NUL, as Stripe's invoices do of the hyphens in their
/// numbers: a dash is known by its shape then.
fn text_of(glyph: &FontGlyph<'_>) -> Option<String> {
    let text = match glyph.as_unicode()? {
        BfString::Char(letter) => letter.to_string(),
        BfString::String(text) => text,
    };
    if !text.contains('\0') {
        return Some(text);
    }
    let is_dash = matches!(glyph, FontGlyph::Outline(outline) if is_dash(&outline.outline()));
    is_dash.then(|| "-".to_owned())
}

/// True for a flat shape above the baseline, in thousandths of the font's size.
fn is_dash(outline: &BezPath) -> bool {
    let area = outline.bounding_box();
    (1.0..=150.0).contains(&area.height())
        && area.width() >= 1.5 * area.height()
        && (150.0..=450.0).contains(&area.center().y)
}

impl<'a> Device<'a> for SurveyedPage {
    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'a>, _: &DrawMode) {}

    fn push_clip_path(&mut self, _: &ClipPath) {}

    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'a>>, _: BlendMode) {}

    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, 'a>, props: DrawProps<'a>, mode: &DrawMode) {
        // As behind a scan.
        let is_visible = !matches!(mode, DrawMode::Invisible);
        for glyph in run.glyphs() {
            if self.glyphs.len() >= CHARACTERS_MAX {
                return self.refuse(DocumentDefect::Characters { page: self.page, most: CHARACTERS_MAX });
            }
            let advance = match &**glyph {
                FontGlyph::Outline(outline) => outline.advance_width(),
                FontGlyph::Type3(drawn) => drawn.advance_width(),
            };
            let place = props.transform * glyph.transform();
            let start = place * Point::ZERO;
            let (along, up) = (place * Point::new(1000.0, 0.0) - start, place * Point::new(0.0, 1000.0) - start);
            // A letter of a font that is not in the file is stretched to its width, text may be condensed: the shorter
            // one.
            let length = along.hypot().min(up.hypot());
            let direction = if along.hypot() > 0.0 { along / along.hypot() } else { along };
            let end = start + direction * (length * f64::from(advance.unwrap_or(500.0)) / 1000.0);
            self.glyphs.push(Glyph { text: text_of(glyph), start, end, up, is_visible });
        }
    }

    fn draw_image(&mut self, image: Image<'a, '_>, props: ImageDrawProps<'a>) {
        let (width, height) = (image.width(), image.height());
        if u64::from(width) * u64::from(height) > IMAGE_PIXELS_MAX {
            let (page, most) = (self.page, IMAGE_PIXELS_MAX / 1_000_000);
            self.refuse(DocumentDefect::Image { page, width, height, most });
        }
        let place = props.transform.transform_rect_bbox(Rect::new(0.0, 0.0, width.into(), height.into()));
        self.covered += place.intersect(self.area).area().max(0.0);
    }

    fn pop_clip(&mut self) {}

    fn pop_transparency_group(&mut self) {}
}

/// Opens a PDF, and examines its pages without drawing them; true when it has one. The folder `fuzz/` and
/// `tests/it/fuzz.rs` feed it. It has no limits itself: those of its process apply.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_pdf(data: &[u8]) -> bool {
    let Ok(document) = PdfFile::open(data.to_vec(), DocumentLimits::new(3, 1000)) else { return false };
    let settings = InterpreterSettings::default();
    let _ = InvoiceXml::of(&document.pdf);
    let pages = document.pdf.pages();
    for page in pages.iter().take(1) {
        if let Ok((size, scale)) = size(page, 1, document.limits)
            && page_work::check(page, 1).is_ok()
            && let Ok(survey) = SurveyedPage::of(page, 1, scale, &settings)
        {
            let _ = survey.text(TextLayerPolicy::Always, size);
        }
    }
    true
}

/// The characters of a page, in pixels of its picture.
#[cfg(test)]
pub(crate) fn glyphs(file: &[u8], page: usize) -> Vec<Glyph> {
    let document = PdfFile::open(file.to_vec(), DocumentLimits::new(10, 1000)).unwrap();
    let page = &document.pdf.pages()[page];
    let (_, scale) = size(page, 1, document.limits).unwrap();
    SurveyedPage::of(page, 1, scale, &InterpreterSettings::default()).unwrap().glyphs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_known_by_its_shape() {
        let is_dash_from =
            |left: f64, bottom: f64, right: f64, top: f64| is_dash(&Rect::new(left, bottom, right, top).to_path(0.1));
        assert!(is_dash_from(40.0, 260.0, 360.0, 330.0), "a hyphen");
        assert!(!is_dash_from(40.0, -120.0, 540.0, -70.0), "a line below the baseline");
        assert!(!is_dash_from(80.0, 0.0, 180.0, 700.0), "a vertical bar");
        assert!(!is_dash_from(80.0, 0.0, 180.0, 100.0), "a full stop");
        assert!(!is_dash(&BezPath::new()), "a space");
    }
}
