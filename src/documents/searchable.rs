//! Makes a searchable PDF: the pages of a document as they are, with the words of OCR as a text layer.
//!
//! A PDF is not written again: an update behind its bytes changes the dictionaries of the pages that get words, so
//! signatures, attachments and forms stay. The words are drawn before the page, where its operators cannot have
//! changed the graphics state; they are invisible, so the order cannot be seen. An encrypted file, and one whose
//! cross-reference section is damaged, is written as a new file.

use std::collections::HashMap;

use hayro::hayro_syntax::Pdf;
use hayro::hayro_syntax::object::{Array, Dict, FromBytes, Name, ObjRef, Object, ObjectIdentifier, Stream};
use hayro::hayro_syntax::page::Page;
use hayro::kurbo::Affine;

use crate::invisible_text::InvisibleFont;
use crate::order::{DocumentDefect, DocumentLimits, LayerPage, SearchableSource};
use crate::pdf::{self, PdfFile};
use crate::pdf_writer::{PdfWriter, XrefForm, decimal};
use crate::picture_page::{self, PagePicture};
use crate::tiff::TiffFile;

/// The name of the font among the resources of a page.
const FONT: &str = "LedgeText";
/// The greatest number of an object (ISO 32000-1, annex C). Readers refuse greater ones.
const OBJECT_NUMBER_MAX: u32 = 8_388_607;
/// The most ancestors of a page.
const ANCESTORS_MAX: usize = 64;

/// Makes a searchable PDF of a document. A page behind the last of `layers` gets no words.
pub(crate) fn make(
    file: Vec<u8>,
    source: SearchableSource,
    layers: &[LayerPage],
    limits: DocumentLimits,
) -> Result<Vec<u8>, DocumentDefect> {
    match source {
        SearchableSource::Pdf => add_layer(&PdfFile::open(file, limits)?, layers, limits),
        SearchableSource::Tiff => {
            let mut pages = PicturePages::new();
            let mut layers = layers.iter();
            TiffFile::open(file, limits)?.each_stored(|picture| {
                pages.add(&picture, layers.next());
                Ok::<_, DocumentDefect>(())
            })?;
            Ok(pages.finish())
        }
        SearchableSource::Picture => {
            let mut pages = PicturePages::new();
            pages.add(&picture_page::read(&file)?, layers.first());
            Ok(pages.finish())
        }
    }
}

fn add_layer(file: &PdfFile, layers: &[LayerPage], limits: DocumentLimits) -> Result<Vec<u8>, DocumentDefect> {
    let pdf = file.pdf();
    let original = pdf.data().as_ref();
    let layered: Vec<_> = (1..)
        .zip(pdf.pages().iter().zip(layers))
        .filter(|(_, (_, layer))| layer.lines.iter().any(|line| !line.is_empty()))
        .collect();
    let mut pages = HashMap::new();
    for (number, (page, layer)) in layered {
        let ((width, height), scale) = pdf::size(page, number, limits)?;
        // A second text would be found twice.
        if pdf::has_hidden_text(page, number, scale)? {
            continue;
        }
        let to_pixels = Affine::scale(scale) * pdf::to_kurbo(page);
        // The layer has the size at which the page was read.
        let resized = |layer: u32, own: u32| f64::from(layer.max(1)) / f64::from(own);
        let to_layer = Affine::scale_non_uniform(resized(layer.width, width), resized(layer.height, height));
        let id = page_id(pdf, page).ok_or(DocumentDefect::NoLayer)?;
        pages.insert(id, LayeredPage { page, layer, to_points: (to_layer * to_pixels).inverse() });
    }
    if pages.is_empty() {
        return Ok(original.to_vec());
    }
    let update = LastXref::of(original).filter(|last| last.is_of(pdf)).map(|last| update(pdf, &pages, &last));
    let is_whole =
        |written: &Vec<u8>| Pdf::new(written.clone()).is_ok_and(|again| again.pages().len() == pdf.pages().len());
    match update.filter(is_whole) {
        Some(written) => Ok(written),
        None => Some(rewrite(pdf, &pages)).filter(is_whole).ok_or(DocumentDefect::NoLayer),
    }
}

/// A page that gets words.
struct LayeredPage<'a, 'l> {
    page: &'a Page<'a>,
    layer: &'l LayerPage,
    to_points: Affine,
}

/// The object that a page is; `None` for one that is written within its parent.
fn page_id(pdf: &Pdf, page: &Page<'_>) -> Option<ObjRef> {
    let id = page.raw().obj_id()?;
    let is_itself = |found: Dict<'_>| std::ptr::eq(found.data(), page.raw().data()) || found == *page.raw();
    pdf.xref().get::<Dict<'_>>(id).is_some_and(is_itself).then(|| id.into())
}

/// The last cross-reference section of a file.
struct LastXref<'a> {
    form: XrefForm,
    offset: usize,
    trailer: Dict<'a>,
    /// One more than the greatest number of an object.
    size: u32,
}

impl<'a> LastXref<'a> {
    /// Finds it. `None` where it is not at the place that the file states.
    fn of(file: &'a [u8]) -> Option<Self> {
        const START: &[u8] = b"startxref";
        const TRAILER: &[u8] = b"trailer";
        let start = file.windows(START.len()).rposition(|bytes| bytes == START)?;
        let (offset, _) = number(file.get(start + START.len()..)?)?;
        let offset = usize::try_from(offset).ok()?;
        let section = file.get(offset..)?.trim_ascii_start();
        let (form, trailer) = if section.starts_with(b"xref") {
            let at = section.windows(TRAILER.len()).position(|bytes| bytes == TRAILER)?;
            (XrefForm::Table, section.get(at + TRAILER.len()..)?)
        } else {
            let (_, rest) = number(section)?;
            let (_, rest) = number(rest)?;
            (XrefForm::Stream, rest.trim_ascii_start().strip_prefix(b"obj")?)
        };
        let trailer = Dict::from_bytes(trailer.trim_ascii_start())?;
        let is_xref = form == XrefForm::Table || trailer.get::<Name<'_>>("Type").as_deref() == Some(b"XRef");
        let size = trailer.get::<u32>("Size").filter(|size| *size <= OBJECT_NUMBER_MAX)?;
        is_xref.then_some(Self { form, offset, trailer, size })
    }

    /// True where the file was read by this section, and an update can be added to it.
    fn is_of(&self, pdf: &Pdf) -> bool {
        let root = self.trailer.get_ref("Root").map(ObjectIdentifier::from);
        root == Some(pdf.xref().root_id()) && !self.trailer.contains_key("Encrypt")
    }

    /// The first number behind those of all objects.
    fn next_number(&self, pdf: &Pdf) -> u32 {
        let is_taken = |number: u32| pdf.xref().get::<Object<'_>>(ObjectIdentifier::new(number, 0)).is_some();
        let mut next = self.size;
        while is_taken(next) {
            next = next.saturating_add(1);
        }
        next
    }
}

/// A whole number at the beginning, and the bytes behind it.
fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let bytes = bytes.trim_ascii_start();
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
    let (digits, rest) = bytes.split_at(end);
    Some((str::from_utf8(digits).ok()?.parse().ok()?, rest))
}

/// Adds an update to the file.
fn update(pdf: &Pdf, pages: &HashMap<ObjRef, LayeredPage<'_, '_>>, last: &LastXref<'_>) -> Vec<u8> {
    let mut writer = PdfWriter::behind(pdf.data().as_ref(), last.next_number(pdf));
    let mut layers = LayerWriter::new(&mut writer);
    let mut ids: Vec<_> = pages.iter().collect();
    ids.sort_by_key(|(id, _)| (id.obj_number, id.gen_number));
    for (id, page) in ids {
        layers.write_page(&mut writer, *id, page);
    }
    layers.font.write_to(&mut writer, layers.font_id);
    let mut trailer = format!("/Prev {}", last.offset).into_bytes();
    write_trailer(&mut writer, &last.trailer, &["Root", "Info", "ID"], &mut trailer);
    writer.finish(last.form, &trailer)
}

/// Writes the file again: every object that its root refers to, not encrypted.
fn rewrite(pdf: &Pdf, pages: &HashMap<ObjRef, LayeredPage<'_, '_>>) -> Vec<u8> {
    let mut writer = PdfWriter::new();
    let root = writer.reference(pdf.xref().root_id().into());
    let mut trailer = format!("/Root {root}").into_bytes();
    if let Some(last) = LastXref::of(pdf.data().as_ref()) {
        write_trailer(&mut writer, &last.trailer, &["Info", "ID"], &mut trailer);
    }
    let mut layers = LayerWriter::new(&mut writer);
    while let Some(old) = writer.next_waiting() {
        let id = writer.reference(old);
        match pages.get(&old) {
            Some(page) => layers.write_page(&mut writer, id, page),
            None => match pdf.xref().get::<Object<'_>>(old.into()) {
                Some(object) => writer.copy(id, &object),
                None => writer.object(id, b"null"),
            },
        }
    }
    layers.font.write_to(&mut writer, layers.font_id);
    writer.finish(XrefForm::Table, &trailer)
}

fn write_trailer(writer: &mut PdfWriter, trailer: &Dict<'_>, keys: &[&str], out: &mut Vec<u8>) {
    for key in keys {
        if let Some(value) = trailer.get_raw::<Object<'_>>(key) {
            out.extend(format!("/{key} ").bytes());
            writer.write_value(&value, out);
        }
    }
}

/// Writes the pages that get words.
struct LayerWriter<'a> {
    font: InvisibleFont,
    font_id: ObjRef,
    /// The resources with the font, by those without it. Pages may share them.
    resources: HashMap<&'a [u8], (ObjRef, String)>,
}

impl<'a> LayerWriter<'a> {
    fn new(writer: &mut PdfWriter) -> Self {
        Self { font: InvisibleFont::default(), font_id: writer.reserve(), resources: HashMap::new() }
    }

    fn write_page(&mut self, writer: &mut PdfWriter, id: ObjRef, layered: &LayeredPage<'a, '_>) {
        let page = layered.page.raw();
        let (resources, font) = self.resources(writer, page);
        let text = self.font.operators(layered.layer, layered.to_points, &font);
        let layer = writer.reserve();
        writer.compressed_stream(layer, "", &text);

        let mut body = b"<<".to_vec();
        writer.write_entries(page, &[b"Contents", b"Resources"], &mut body);
        body.extend(format!("/Resources {resources}/Contents[{layer} ").bytes());
        if let Some(contents) = page.get::<Array<'_>>("Contents") {
            for stream in contents.raw_iter().filter(|item| item.as_obj_ref().is_some()) {
                writer.write_value(&stream, &mut body);
                body.push(b' ');
            }
        } else if let (Some(contents), Some(_)) = (page.get_ref("Contents"), page.get::<Stream<'_>>("Contents")) {
            body.extend(writer.reference(contents).to_string().bytes());
        }
        body.extend(b"]>>");
        writer.object(id, &body);
    }

    /// The resources of a page with the font of the layer, and the name of the font among them.
    fn resources(&mut self, writer: &mut PdfWriter, page: &Dict<'a>) -> (ObjRef, String) {
        let own = |dict: &Dict<'a>| dict.get::<Dict<'a>>("Resources");
        let ancestors = std::iter::successors(Some(page.clone()), |dict| dict.get::<Dict<'a>>("Parent"));
        let without = ancestors.take(ANCESTORS_MAX).find_map(|dict| own(&dict)).unwrap_or_default();
        if let Some(known) = self.resources.get(without.data()) {
            return known.clone();
        }
        let fonts = without.get::<Dict<'a>>("Font").unwrap_or_default();
        let mut name = FONT.to_owned();
        while fonts.contains_key(&name) {
            name.push('_');
        }
        let mut body = b"<<".to_vec();
        writer.write_entries(&without, &[b"Font"], &mut body);
        body.extend(b"/Font<<");
        writer.write_entries(&fonts, &[], &mut body);
        body.extend(format!("/{name} {}>>>>", self.font_id).bytes());
        let id = writer.reserve();
        writer.object(id, &body);
        self.resources.insert(without.data(), (id, name.clone()));
        (id, name)
    }
}

/// A new PDF with a picture on each page.
struct PicturePages {
    writer: PdfWriter,
    font: InvisibleFont,
    /// The objects of the root, the list of pages, and the font.
    ids: [ObjRef; 3],
    pages: Vec<ObjRef>,
}

impl PicturePages {
    fn new() -> Self {
        let mut writer = PdfWriter::new();
        let ids = [(); 3].map(|()| writer.reserve());
        Self { writer, font: InvisibleFont::default(), ids, pages: Vec::new() }
    }

    fn add(&mut self, picture: &PagePicture<'_>, layer: Option<&LayerPage>) {
        let [_, list, font] = self.ids;
        let [page, image, contents] = [(); 3].map(|()| self.writer.reserve());
        let (width, height) = picture.points();
        let mut operators = Vec::new();
        if let Some(layer) = layer.filter(|layer| layer.lines.iter().any(|line| !line.is_empty())) {
            let side = |points: f64, pixels: u32| points / f64::from(pixels.max(1));
            let scale = Affine::scale_non_uniform(side(width, layer.width), -side(height, layer.height));
            operators = self.font.operators(layer, scale.then_translate((0.0, height).into()), FONT);
        }
        operators.extend(picture.operators("Page").bytes());

        self.writer.stream(image, picture.entries.as_bytes(), &picture.data);
        self.writer.compressed_stream(contents, "", &operators);
        let [width, height] = [width, height].map(|side| decimal(side, 4));
        let body = format!(
            "<</Type/Page/Parent {list}/MediaBox[0 0 {width} {height}]/Resources<</XObject<</Page {image}>>\
             /Font<</{FONT} {font}>>>>/Contents {contents}>>"
        );
        self.writer.object(page, body.as_bytes());
        self.pages.push(page);
    }

    fn finish(mut self) -> Vec<u8> {
        let [root, list, font] = self.ids;
        self.font.write_to(&mut self.writer, font);
        self.writer.object(root, format!("<</Type/Catalog/Pages {list}>>").as_bytes());
        let kids: Vec<_> = self.pages.iter().map(ToString::to_string).collect();
        let body = format!("<</Type/Pages/Kids[{}]/Count {}>>", kids.join(" "), kids.len());
        self.writer.object(list, body.as_bytes());
        let info = self.writer.reserve();
        self.writer.object(info, b"<</Producer(Ledge)>>");
        self.writer.finish(XrefForm::Table, format!("/Root {root}/Info {info}").as_bytes())
    }
}

/// Makes a searchable PDF of a PDF or a picture with a word on each page; true when there is one. It has the pages of
/// the document. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_searchable_pdf(data: &[u8]) -> bool {
    use crate::order::LayerWord;

    let limits = DocumentLimits::new(3, 1000);
    let source = if data.starts_with(b"%PDF") { SearchableSource::Pdf } else { SearchableSource::Picture };
    let word =
        LayerWord { text: "Total".to_owned(), corners: [[10.0, 10.0], [90.0, 10.0], [90.0, 30.0], [10.0, 30.0]] };
    let layer = LayerPage { width: 1653, height: 2338, lines: vec![vec![word]] };
    let Ok(made) = make(data.to_vec(), source, &[layer.clone(), layer.clone(), layer], limits) else { return false };
    let made = Pdf::new(made);
    assert!(made.is_ok(), "a searchable PDF can be opened");
    let pages = made.map(|made| made.pages().len());
    let before =
        if source == SearchableSource::Pdf { Pdf::new(data.to_vec()).map(|pdf| pdf.pages().len()) } else { Ok(1) };
    assert_eq!(pages, before);
    true
}

#[cfg(test)]
mod tests;
