//! Documents of several pages, PDF and TIFF: text layers, scans, encrypted and hostile files.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot, model_folder, processes};

const MODEL: &str = "document_reader";
/// Lines of an invoice as operators of a PDF page.
const INVOICE: &str = "BT /F 12 Tf 72 760 Td (Invoice No. R-2048) Tj 0 -20 Td (Date 2026-11-20) Tj 0 -40 Td (Total) Tj \
                       300 0 Td (EUR 119.00) Tj ET";

/// A PDF file of these objects, of which the first is the root.
fn pdf(objects: &[Vec<u8>], trailer: &str) -> Vec<u8> {
    let mut file = b"%PDF-1.7\n".to_vec();
    let mut places = String::from("0000000000 65535 f \n");
    for (object, number) in objects.iter().zip(1..) {
        writeln!(places, "{:010} 00000 n ", file.len()).unwrap();
        writeln!(file, "{number} 0 obj").unwrap();
        file.extend(object);
        file.extend(b"\nendobj\n");
    }
    let (start, size) = (file.len(), objects.len() + 1);
    write!(file, "xref\n0 {size}\n{places}trailer <</Size {size} /Root 1 0 R {trailer}>>\nstartxref\n{start}\n%%EOF")
        .unwrap();
    file
}

fn stream(keys: &str, bytes: &[u8]) -> Vec<u8> {
    let mut object = format!("<<{keys} /Length {}>>\nstream\n", bytes.len()).into_bytes();
    object.extend(bytes);
    object.extend(b"\nendstream");
    object
}

/// The objects of a document with these contents of its pages. Objects behind them are added, from number 10 on: those
/// that `resources` names.
fn objects(pages: &[&[u8]], resources: &str, more: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    assert!(pages.len() <= 3);
    let kids: Vec<_> = (0..pages.len()).map(|page| format!("{} 0 R", 4 + 2 * page)).collect();
    let mut objects = vec![
        b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
        format!("<</Type /Pages /Kids [{}] /Count {}>>", kids.join(" "), pages.len()).into_bytes(),
        b"<</Type /Font /Subtype /Type1 /BaseFont /Helvetica>>".to_vec(),
    ];
    for (page, content) in pages.iter().enumerate() {
        let dictionary = format!(
            "<</Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {} 0 R /Resources <</Font <</F 3 0 R>> \
             {resources}>>>>",
            5 + 2 * page
        );
        objects.push(dictionary.into_bytes());
        objects.push(stream("", content));
    }
    objects.resize(9, b"null".to_vec());
    objects.extend(more);
    objects
}

/// One page with a text layer.
pub fn invoice() -> Vec<u8> {
    pdf(&objects(&[INVOICE.as_bytes()], "", Vec::new()), "")
}

/// Two pages, of which the second has a text layer.
pub fn two_pages() -> Vec<u8> {
    pdf(&objects(&[b"0 0 9 9 re f", INVOICE.as_bytes()], "", Vec::new()), "")
}

/// A scan: the page is the picture of a receipt, which stands for its whole width.
fn scan(text: &str) -> Vec<u8> {
    let receipt = std::fs::read(model_folder(MODEL).join("golden/receipt.png")).unwrap();
    let receipt = image::load_from_memory(&receipt).unwrap().into_rgb8();
    let (width, height) = receipt.dimensions();
    let keys = format!(
        "/Type /XObject /Subtype /Image /Width {width} /Height {height} /BitsPerComponent 8 /ColorSpace /DeviceRGB"
    );
    let content = format!("q 595 0 0 737 0 50 cm /I Do Q {text}");
    pdf(&objects(&[content.as_bytes()], "/XObject <</I 10 0 R>>", vec![stream(&keys, receipt.as_raw())]), "")
}

/// A page with 1 GiB of spaces, compressed.
pub fn spaces() -> Vec<u8> {
    let mut spaces = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let part = vec![b' '; 1 << 20];
    (0..1024).for_each(|_| spaces.write_all(&part).unwrap());
    let mut bomb = objects(&[b""], "", Vec::new());
    bomb[4] = stream("/Filter /FlateDecode", &spaces.finish().unwrap());
    pdf(&bomb, "")
}

fn start() -> TestDaemon {
    TestRoot::new().models(&[MODEL]).start()
}

fn post(client: &mut Client, headers: &[(&str, &str)], file: &[u8]) -> Response {
    let headers = [&[("content-type", "application/pdf")], headers].concat();
    client.post(&format!("/v2/models/{MODEL}/infer"), &headers, file)
}

#[track_caller]
fn read(client: &mut Client, file: &[u8]) -> Value {
    let answer = post(client, &[], file);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["document"].clone()
}

#[test]
fn a_text_layer_is_the_text_of_its_page_and_no_model_runs() {
    let daemon = start();
    let client = &mut daemon.client();
    let answer = post(client, &[], &invoice()).json();
    let page = &answer["document"]["pages"][0];
    assert_eq!((&page["source"], &page["width"], &page["height"]), (&json!("text_layer"), &json!(1652), &json!(2338)));
    assert_eq!(page["text"], "Invoice No. R-2048\nDate 2026-11-20\nTotal EUR 119.00\n", "{page}");
    let fields = &answer["document"]["fields"];
    assert_eq!(fields["total"]["value"], json!({"amount": "119.00", "currency": "EUR"}), "{fields}");
    assert_eq!((&fields["date"]["value"], &fields["number"]["value"]), (&json!("2026-11-20"), &json!("R-2048")));
    // 372 points from the left and 142 from the top, at 200 dots per inch.
    let [x, y]: [f64; 2] = serde_json::from_value(fields["total"]["box"][3].clone()).unwrap();
    assert!((1033.0..1150.0).contains(&x) && (385.0..410.0).contains(&y), "{x} {y}");
    assert_eq!(answer["time_ms"]["stages"].as_object().unwrap().keys().collect::<Vec<_>>(), ["draw"]);
}

#[test]
fn a_scan_is_read_by_the_models_whatever_line_a_fax_machine_wrote_above_it() {
    let daemon = start();
    let client = &mut daemon.client();
    let fax = "BT /F 8 Tf 20 825 Td (FAX 2026-01-01 10:00 from +49 30 1234567 page 1 of 1) Tj ET";
    for file in [scan(""), scan(fax), scan(&format!("3 Tr {INVOICE}"))] {
        let document = read(client, &file);
        assert_eq!(document["pages"][0]["source"], "models");
        assert_eq!(document["fields"]["total"]["value"]["amount"], "13.70", "{document}");
    }
}

#[test]
fn pages_come_in_order_as_their_text_layer_or_read_as_the_section_says() {
    let other = "BT /F 12 Tf 72 700 Td (The second page has other words on it.) Tj ET";
    let pages = pdf(&objects(&[INVOICE.as_bytes(), other.as_bytes(), b""], "", Vec::new()), "");
    let with = |line: &str| {
        let config = std::fs::read_to_string(model_folder(MODEL).join("model.toml")).unwrap();
        let config = config.replace("[pipeline.document_reading]\n", &format!("[pipeline.document_reading]\n{line}\n"));
        assert!(config.contains(line));
        TestRoot::new().models(&[MODEL]).file(&format!("{MODEL}/model.toml"), config).start()
    };
    let sources = |document: &Value| {
        let pages = document["pages"].as_array().unwrap().clone();
        pages.iter().map(|page| page["source"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let daemon = with("");
    let document = read(&mut daemon.client(), &pages);
    // An empty page is read by the models.
    assert_eq!(sources(&document), ["text_layer", "text_layer", "models"]);
    assert_eq!(document["pages"][1]["text"], "The second page has other words on it.\n");
    assert_eq!((&document["pages"][2]["page"], &document["pages"][2]["text"]), (&json!(3), &json!("")));
    let plain = post(&mut daemon.client(), &[("accept", "text/plain")], &pages);
    assert!(
        String::from_utf8_lossy(&plain.body).split('\u{c}').nth(1).is_some_and(|page| page.starts_with("\nThe second")),
        "{plain:?}"
    );

    let daemon = with("text_layer = \"never\"\npages_max = 2");
    let document = read(&mut daemon.client(), &invoice());
    assert_eq!(
        (sources(&document), &document["fields"]["total"]["value"]["amount"]),
        (vec!["models".into()], &json!("119.00"))
    );
    let answer = post(&mut daemon.client(), &[], &pages);
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("has 3 pages, and at most 2 are read"), "{answer:?}");
}

#[test]
fn a_stack_of_invoices_in_one_file_is_answered_one_by_one() {
    let daemon = start();
    let client = &mut daemon.client();
    let other = INVOICE.replace("R-2048", "77120").replace("2026-11-20", "2026-11-21").replace("119.00", "23.80");
    let terms = b"BT /F 12 Tf 72 700 Td (Goods remain ours until they are paid for.) Tj ET";
    let document = read(client, &pdf(&objects(&[INVOICE.as_bytes(), other.as_bytes(), terms], "", Vec::new()), ""));
    assert_eq!(document["fields"], json!({}), "{document}");
    let found: Vec<_> = document["documents"].as_array().unwrap().iter().collect();
    let of = |index: usize, field: &str| found[index]["fields"][field]["value"].clone();
    assert_eq!((found.len(), of(0, "number"), of(1, "number")), (2, json!("R-2048"), json!("77120")), "{document}");
    assert_eq!((&of(0, "total")["amount"], &of(1, "total")["amount"]), (&json!("119.00"), &json!("23.80")));
    assert_eq!((&found[0]["last_page"], &found[1]["last_page"]), (&json!(1), &json!(3)));
    // The same invoice twice is one.
    let document = read(client, &pdf(&objects(&[INVOICE.as_bytes(), INVOICE.as_bytes()], "", Vec::new()), ""));
    assert_eq!((document.get("documents"), &document["fields"]["number"]["value"]), (None, &json!("R-2048")));
}

#[test]
fn an_encrypted_a_damaged_and_an_empty_file_are_told_apart() {
    let daemon = start();
    let client = &mut daemon.client();
    let whole = invoice();
    let (owner, user) = ("41".repeat(32), "42".repeat(32));
    let encrypt = format!("/Encrypt <</Filter /Standard /V 1 /R 2 /O <{owner}> /U <{user}> /P -4>> /ID [<00> <00>]");
    let encrypted = pdf(&objects(&[INVOICE.as_bytes()], "", Vec::new()), &encrypt);
    let none = pdf(&objects(&[], "", Vec::new()), "");
    for (file, reason) in
        [(encrypted.as_slice(), "encrypted with a password"), (&whole[..9], "is damaged"), (&none, "has no pages")]
    {
        let answer = post(client, &[], file);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.error().contains(reason), "{answer:?}");
    }
    read(client, &whole);
}

/// A function of two inputs with this many steps.
fn steps(count: usize) -> String {
    format!("{{ pop {} }}", "dup mul ".repeat(count / 2))
}

/// The processes that draw pages for this daemon.
fn drawing(daemon: &TestDaemon) -> usize {
    processes(daemon.pid(), "pages").len()
}

#[test]
fn a_hostile_file_is_an_error_within_its_deadline_and_the_next_one_is_read() {
    let daemon = start();
    let client = &mut daemon.client();
    // Thirty forms, each of which calls the next ten times.
    let form = |index: usize| {
        let next = format!("/Resources <</XObject <</N {} 0 R>>>>", 11 + index);
        let (next, body) = if index < 29 { (next.as_str(), "/N Do ".repeat(10)) } else { ("", "0 0 1 1 re f".into()) };
        stream(&format!("/Type /XObject /Subtype /Form /BBox [0 0 9 9] {next}"), body.as_bytes())
    };
    let endless = pdf(&objects(&[b"/N Do"], "/XObject <</N 10 0 R>>", (0..30).map(form).collect()), "");
    let answer = post(client, &[], &endless);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.error().contains("page 1 asks for too much work"), "{answer:?}");

    // One operator, which computes a function of 20,000 steps for each pixel.
    let shading =
        "<</ShadingType 1 /ColorSpace /DeviceGray /Domain [0 1 0 1] /Matrix [595 0 0 842 0 0] /Function 11 0 R>>";
    let function = stream("/FunctionType 4 /Domain [0 1 0 1] /Range [0 1]", steps(20_000).as_bytes());
    let more = vec![shading.as_bytes().to_vec(), function];
    let slow = pdf(&objects(&[INVOICE.as_bytes(), b"/S sh"], "/Shading <</S 10 0 R>>", more), "");
    let answer = post(client, &[], &slow);
    assert_eq!(answer.status, 400, "{answer:?}");
    // On a busy machine it may not get this much CPU time in 30 s.
    let reasons = ["it takes more than 5 s of CPU time", "it took longer than 30 s"];
    let error = answer.error();
    assert!(reasons.iter().any(|reason| error.contains(&format!("page 2 cannot be drawn: {reason}"))), "{error}");
    let answer = post(client, &[("x-ledge-timeout-ms", "1500")], &slow);
    assert_eq!(answer.status, 504, "{answer:?}");
    assert_eq!(drawing(&daemon), 0);

    let claims = "/Type /XObject /Subtype /Image /Width 60000 /Height 60000 /BitsPerComponent 8 /ColorSpace /DeviceRGB";
    let claim = pdf(&objects(&[b"/I Do"], "/XObject <</I 10 0 R>>", vec![stream(claims, b"x")]), "");
    let answer = post(client, &[], &claim);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.error().contains("page 1 asks for too much work"), "{answer:?}");

    let answer = post(client, &[], &spaces());
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.error().contains("1024"), "{answer:?}");

    let document = read(client, &invoice());
    assert_eq!(document["fields"]["total"]["value"]["amount"], "119.00");
}

/// The process that draws pages, as the daemon starts it.
fn pages() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ledge"));
    command.arg("pages");
    command
}

#[test]
fn the_verb_that_draws_pages_refuses_what_is_no_order_and_ends_with_its_input() {
    let output = pages().stdin(std::process::Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("daemon"), "{complaint}");
}

#[test]
fn the_process_that_draws_pages_is_sealed_before_it_gets_the_document() {
    let mut process = pages().stdin(std::process::Stdio::piped()).spawn().unwrap();
    let limits = json!({"pages_max": 1, "lines_max": 1, "pixels_max": 1, "memory_bytes": 1 << 30, "cpu_seconds": 30,
        "page_cpu_seconds": 5});
    let task = json!({"draw": {"format": "pdf", "text_layer": "auto"}});
    let order = json!({"bytes": 1, "task": task, "limits": limits});
    writeln!(process.stdin.as_mut().unwrap(), "{order}").unwrap();

    // It waits for the document. The filter of system calls is the last mechanism of the sandbox.
    let status = || std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let sealed = ["NoNewPrivs:\t1", "CapEff:\t0000000000000000", "Seccomp:\t2"];
    let started = std::time::Instant::now();
    while !sealed.iter().all(|line| status().contains(line)) {
        assert!(started.elapsed().as_secs() < 30, "{}", status());
        std::thread::yield_now();
    }
    drop(process.stdin.take());
    assert!(!process.wait().unwrap().success());
}

/// A TIFF of these pages: width, height, rows of three bytes a pixel, and `NewSubfileType`. Its directories are a chain
/// that ends, or one that ends where it begins.
fn tiff(pages: &[(u32, u32, &[u8], u32)], is_loop: bool) -> Vec<u8> {
    let mut file = b"II*\0\0\0\0\0".to_vec();
    let (mut link, mut first) = (4, 0);
    for (width, height, pixels, kind) in pages {
        let bits = u32::try_from(file.len()).unwrap();
        file.extend([8_u16; 3].iter().flat_map(|bits| bits.to_le_bytes()));
        let strip = u32::try_from(file.len()).unwrap();
        file.extend(*pixels);
        if file.len() % 2 == 1 {
            file.push(0);
        }
        let directory = u32::try_from(file.len()).unwrap();
        file[link..link + 4].copy_from_slice(&directory.to_le_bytes());
        first = if first == 0 { directory } else { first };
        let length = u32::try_from(pixels.len()).unwrap();
        // Of SHORT (3) and LONG (4): the tag, the type, the count, the value.
        let tags: [(u16, u16, u32, u32); 10] = [
            (254, 4, 1, *kind),
            (256, 4, 1, *width),
            (257, 4, 1, *height),
            (258, 3, 3, bits),
            (259, 3, 1, 1),
            (262, 3, 1, 2),
            (273, 4, 1, strip),
            (277, 3, 1, 3),
            (278, 4, 1, *height),
            (279, 4, 1, length),
        ];
        file.extend(u16::try_from(tags.len()).unwrap().to_le_bytes());
        for (tag, kind, count, value) in tags {
            file.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            file.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
        }
        link = file.len();
        file.extend([0; 4]);
    }
    if is_loop {
        file[link..].copy_from_slice(&first.to_le_bytes());
    }
    file
}

/// A TIFF of two small pages.
pub fn small_tiff() -> Vec<u8> {
    tiff(&[(2, 1, &[0, 0, 0, 255, 255, 255], 0), (1, 1, &[9, 9, 9], 1), (1, 2, &[1, 2, 3, 4, 5, 6], 0)], false)
}

#[test]
fn each_page_of_a_tiff_is_read_and_smaller_copies_are_not() {
    let daemon = start();
    let client = &mut daemon.client();
    let receipt = std::fs::read(model_folder(MODEL).join("golden/receipt.png")).unwrap();
    let receipt = image::load_from_memory(&receipt).unwrap().into_rgb8();
    let (width, height) = receipt.dimensions();
    let white = vec![255; 64 * 64 * 3];
    let file = tiff(&[(64, 64, &white, 0), (width, height, receipt.as_raw(), 0), (64, 64, &white, 1)], false);
    let image = ("content-type", "image/tiff");
    let answer = client.post(&format!("/v2/models/{MODEL}/infer"), &[image], &file);
    let document = answer.json()["document"].clone();
    let sizes: Vec<_> = document["pages"].as_array().unwrap().iter().map(|page| page["width"].clone()).collect();
    assert_eq!(sizes, [64, 420], "{document}");
    assert_eq!(
        (&document["fields"]["total"]["value"]["amount"], &document["fields"]["total"]["page"]),
        (&json!("13.70"), &json!(2))
    );

    let huge = tiff(&[(1 << 30, 1 << 30, b"x", 0)], false);
    let wide = tiff(&[(60_000, 60_000, b"x", 0)], false);
    let cut = tiff(&[(width, height, &receipt.as_raw()[..1000], 0)], false);
    let endless = tiff(&[(1, 1, b"xxx", 1)], true);
    for (file, reasons) in [
        (huge, ["pixels", "damaged"]),
        (wide, ["page 1 has an image of 60000x60000 pixels", "-"]),
        (cut, ["page 1 cannot be decoded", "-"]),
        (endless, ["damaged", "no pages"]),
        (b"II*\0\x08\0\0\0".to_vec(), ["damaged", "-"]),
    ] {
        let answer = client.post(&format!("/v2/models/{MODEL}/infer"), &[image], &file);
        assert_eq!(answer.status, 400, "{answer:?}");
        let error = answer.error();
        assert!(reasons.iter().any(|reason| error.contains(reason)), "{error}");
    }
}

/// An invoice with these totals on its page and in its XML, as Factur-X has it.
fn invoice_with_xml(total: &str) -> Vec<u8> {
    let xml = format!(
        "<?xml version='1.0'?><r:CrossIndustryInvoice xmlns:r='urn:r' xmlns:a='urn:a'><r:ExchangedDocument><a:ID>R-2048</a:ID>\
         </r:ExchangedDocument><r:SupplyChainTradeTransaction><a:ApplicableHeaderTradeAgreement><a:SellerTradeParty>\
         <a:Name>Hill &amp; Sons</a:Name></a:SellerTradeParty></a:ApplicableHeaderTradeAgreement>\
         <a:ApplicableHeaderTradeSettlement><a:InvoiceCurrencyCode>EUR</a:InvoiceCurrencyCode>\
         <a:SpecifiedTradeSettlementHeaderMonetarySummation><a:GrandTotalAmount>{total}</a:GrandTotalAmount>\
         </a:SpecifiedTradeSettlementHeaderMonetarySummation></a:ApplicableHeaderTradeSettlement>\
         </r:SupplyChainTradeTransaction></r:CrossIndustryInvoice>"
    );
    let file = b"<</Type /Filespec /F (factur-x.xml) /UF (factur-x.xml) /EF <</F 11 0 R>>>>".to_vec();
    let more = vec![file, stream("/Type /EmbeddedFile", xml.as_bytes())];
    let mut objects = objects(&[INVOICE.as_bytes()], "", more);
    objects[0] = b"<</Type /Catalog /Pages 2 0 R /AF [10 0 R]>>".to_vec();
    pdf(&objects, "")
}

#[test]
fn the_xml_of_an_invoice_is_read_and_compared_with_its_page() {
    let daemon = start();
    let client = &mut daemon.client();
    let document = read(client, &invoice_with_xml("119.00"));
    let (total, supplier) = (&document["fields"]["total"], &document["fields"]["supplier"]);
    assert_eq!((&total["source"], &total["value"]["amount"]), (&json!("xml"), &json!("119.00")), "{document}");
    assert!(total["box"].is_array());
    // The page does not say it.
    assert_eq!((&supplier["value"], &supplier["box"]), (&json!("Hill & Sons"), &Value::Null), "{document}");

    let document = read(client, &invoice_with_xml("1190.00"));
    let doubtful = &document["doubtful"]["total"];
    assert_eq!(document["fields"]["total"], Value::Null, "{document}");
    assert_eq!((&doubtful["value"]["amount"], &doubtful["xml"]["amount"]), (&json!("119.00"), &json!("1190.00")));
}
