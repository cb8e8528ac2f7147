//! Documents in GIF and BMP: read, made searchable, and hostile.

use std::io::Cursor;

use image::ImageFormat;
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestRoot, data, model_folder, write};

const MODEL: &str = "document_reader";

/// A palette of black and white.
const PALETTE: [u8; 8] = [0, 0, 0, 0, 255, 255, 255, 0];

fn receipt() -> image::GrayImage {
    let file = std::fs::read(model_folder(MODEL).join("golden/receipt.png")).unwrap();
    image::load_from_memory(&file).unwrap().into_luma8()
}

/// A receipt with the pixels of one that is a PNG.
fn bmp() -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    receipt().write_to(&mut file, ImageFormat::Bmp).unwrap();
    file.into_inner()
}

/// A BMP of two pixels.
pub fn small_bmp() -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    image::RgbImage::from_raw(2, 1, vec![9, 8, 7, 200, 201, 202])
        .unwrap()
        .write_to(&mut file, ImageFormat::Bmp)
        .unwrap();
    file.into_inner()
}

/// A BMP of this size with 8 bits a pixel, compressed by runs, and with these runs.
fn bmp_of_runs((width, height): (u32, u32), runs: &[u8]) -> Vec<u8> {
    let mut file = b"BM\0\0\0\0\0\0\0\0\x3E\0\0\0\x28\0\0\0".to_vec();
    file.extend([width, height].iter().flat_map(|side| side.to_le_bytes()));
    // Planes and bits; the compression, the bytes, the resolution, the colours.
    file.extend([1_u16, 8].iter().flat_map(|number| number.to_le_bytes()));
    file.extend([1_u32, 0, 0, 0, 2, 0].iter().flat_map(|number| number.to_le_bytes()));
    [&file, &PALETTE[..], runs].concat()
}

/// A BMP of a receipt in black and white, compressed by runs.
pub fn runs() -> Vec<u8> {
    let receipt = receipt();
    let mut runs = Vec::new();
    for row in receipt.rows().rev() {
        let indexes: Vec<u8> = row.map(|pixel| u8::from(pixel.0[0] > 140)).collect();
        for run in indexes.chunk_by(|one, other| one == other) {
            runs.extend(run.chunks(255).flat_map(|run| [u8::try_from(run.len()).unwrap(), run[0]]));
        }
        runs.extend([0, 0]);
    }
    runs.extend([0, 1]);
    bmp_of_runs(receipt.dimensions(), &runs)
}

fn ask(client: &mut Client, kind: &str, accept: &str, file: &[u8]) -> Response {
    client.post(&format!("/v2/models/{MODEL}/infer"), &[("content-type", kind), ("accept", accept)], file)
}

#[track_caller]
fn check_receipt(document: &Value) {
    let [page] = document["pages"].as_array().unwrap().as_slice() else { panic!("{document}") };
    assert_eq!((&page["width"], &page["height"], &page["source"]), (&json!(420), &json!(520), &json!("models")));
    let lines: Vec<_> = page["text"].as_str().unwrap().lines().collect();
    assert!(["RECEIPT", "Total EUR 13.70"].iter().all(|line| lines.contains(line)), "{lines:?}");
    assert_eq!(document["fields"]["total"]["value"]["amount"], "13.70", "{document}");
}

#[test]
fn gif_and_bmp_are_read_and_become_a_pdf_with_their_words() {
    let daemon = TestRoot::new().models(&[MODEL, "efficientnet_lite0"]).start();
    let client = &mut daemon.client();
    let gif = data("documents/receipt.gif");
    for (kind, file) in [("image/gif", gif.clone()), ("image/bmp", bmp()), ("image/bmp", runs())] {
        check_receipt(&ask(client, kind, "*/*", &file).json()["document"]);
        let made = ask(client, kind, "application/pdf", &file);
        assert_eq!((made.status, made.header("content-type")), (200, Some("application/pdf")), "{made:?}");
        assert!(made.body.len() < 60_000, "{kind}: {} bytes", made.body.len());
        // Its page is read again, without its layer, which is behind a picture.
        let again = ask(client, "application/pdf", "*/*", &made.body).json();
        assert_eq!(again["document"]["fields"]["total"]["value"]["amount"], "13.70", "{again}");

        let drawn = ask(client, kind, "image/png", &file);
        assert!(drawn.status == 406 && drawn.error().contains("JSON"), "{drawn:?}");
        let refused = client.post("/v2/models/efficientnet_lite0/infer", &[("content-type", kind)], &file);
        assert!(refused.status == 400 && refused.error().contains("convert it to JPEG, PNG or WebP"), "{refused:?}");
    }
    let unmarked = client.post(&format!("/v2/models/{MODEL}/infer"), &[("content-type", "text/plain")], &gif);
    assert!(unmarked.error().contains("send it with 'Content-Type: image/gif'"), "{unmarked:?}");
}

#[test]
fn a_command_reads_a_folder_with_gif_and_bmp() {
    let root = TestRoot::new().models(&[MODEL]);
    let [scans, pdfs] = ["scans", "pdfs"].map(|name| root.folder.path().join(name));
    write(&scans.join("a.gif"), &data("documents/receipt.gif"));
    write(&scans.join("b.BMP"), &bmp());
    let [from, into] = [&scans, &pdfs].map(|path| path.to_str().unwrap());
    let output = root.command(&["infer", MODEL, from, "--json", "--out-pdf", into]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for answer in &answers {
        check_receipt(&answer["document"]);
    }
    assert_eq!(answers.len(), 2);
    for name in ["a.pdf", "b.pdf"] {
        assert!(std::fs::read(pdfs.join(name)).unwrap().starts_with(b"%PDF-"));
    }
}

#[test]
fn a_hostile_gif_or_bmp_is_refused_and_others_are_served() {
    let daemon = TestRoot::new().models(&[MODEL]).start();
    let client = &mut daemon.client();
    let resized = |file: &[u8], at: usize, size: &[u8]| {
        let mut file = file.to_vec();
        file[at..at + size.len()].copy_from_slice(size);
        file
    };
    let gif = data("documents/receipt.gif");
    let huge = "page 1 has an image of 65535x65535 pixels";
    let white_rows = [255, 1].repeat(1000);
    for (file, reason) in [
        (resized(&gif, 6, &[0xFF; 4]), huge),
        (resized(&bmp(), 18, &[0xFF, 0xFF, 0, 0, 0xFF, 0xFF, 0, 0]), huge),
        (gif[..2000].to_vec(), "page 1 cannot be decoded: it is cut off"),
        (bmp()[..20_000].to_vec(), "page 1 cannot be decoded: it is cut off"),
        (bmp_of_runs((100, 100), &white_rows), "page 1 cannot be decoded: it is cut off"),
        (bmp_of_runs((2, 2), &[0, 2, 9, 9, 0, 1]), "page 1 cannot be decoded"),
        (b"GIF89a\x09\0\x09\0\0\0\0;".to_vec(), "page 1 cannot be decoded"),
        (b"BM\0\0\0\0\0\0\0\0".to_vec(), "page 1 cannot be decoded: it is cut off"),
    ] {
        for accept in ["*/*", "application/pdf"] {
            let answer = ask(client, "image/bmp", accept, &file);
            assert!(answer.status == 400 && answer.error().contains(reason), "{reason}: {answer:?}");
        }
    }
    // A hundred million pixels by two bytes.
    let bomb = bmp_of_runs((10_000, 10_000), &[0, 1]);
    let answer = ask(client, "image/bmp", "*/*", &bomb);
    assert!([200, 400].contains(&answer.status), "{answer:?}");
    check_receipt(&ask(client, "image/gif", "*/*", &gif).json()["document"]);
    assert_eq!(daemon.complaints(), Vec::<Value>::new());
}
