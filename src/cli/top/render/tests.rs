use proptest::prelude::*;

use super::super::view::ProcessView;
use super::*;

fn model(name: &str) -> ModelView {
    ModelView {
        model: name.to_owned(),
        version: "3".to_owned(),
        ready: true,
        runtime: Some("onnxruntime".to_owned()),
        instances: 2,
        requests_per_second: 120.0,
        failures_per_second: 0.25,
        refusals_per_second: 0.0,
        elements_per_second: 480.0,
        p50_seconds: Some(0.000_25),
        p99_seconds: Some(0.0421),
        queue_p99_seconds: Some(1.5),
        mean_batch: Some(3.97),
        cache_hit_ratio: None,
        queue_depth: 5,
        cpu_cores: Some(1.42),
    }
}

fn view(models: Vec<ModelView>) -> View {
    let core = |core| CoreView { core, load_ratio: Some(0.5), frequency_hertz: Some(2.6e9) };
    View {
        version: Some("1.2.3".to_owned()),
        uptime_seconds: Some(90_061.5),
        interval_seconds: 1.0,
        process: ProcessView { cpu_cores: Some(1.5), memory_bytes: Some(125_829_120), threads: Some(14) },
        cores: vec![core(0), core(1)],
        temperatures_celsius: [("coretemp Package id 0".to_owned(), 54.4)].into(),
        models,
    }
}

fn drawn(view: &View, width: usize, height: usize) -> Vec<Line> {
    let history = History::from([0.0, 60.0, 120.0]);
    lines(view, "unix:ledge.sock", &history, TerminalSize { width, height })
}

fn text(lines: &[Line]) -> String {
    lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_wide_terminal_shows_everything() {
    let expected = "\
ledge 1.2.3  up 1 d 01:01:01  unix:ledge.sock  over 1.0 s
service  CPU 150 %  memory 120 MiB  threads 14  requests 120/s  ▁▅█
core 0  ██████░░░░░░   50 %  2.60 GHz   core 1  ██████░░░░░░   50 %  2.60 GHz
temperature  coretemp Package id 0 54 °C

MODEL      REQ/S  ELEM/S FAIL/S REFUSED/S     P50     P99 QUEUE P99 WAITING BATCH CACHED    CPU INST
resnet 3     120     480   0.25         0  250 us 42.1 ms     1.5 s       5   4.0      -  142 %    2";
    assert_eq!(text(&drawn(&view(vec![model("resnet")]), 120, usize::MAX)), expected);
}

#[test]
fn a_narrow_terminal_keeps_the_figures_that_matter_most() {
    let drawn = drawn(&view(vec![model("efficientnet_lite0")]), 60, 20);
    let heading = drawn.iter().find(|line| line.style == Style::Heading).unwrap();
    assert_eq!(heading.text.split_whitespace().collect::<Vec<_>>(), ["MODEL", "REQ/S", "P50", "P99", "WAITING"]);
    let row = &drawn[drawn.len() - 1].text;
    assert!(row.starts_with("efficientnet_lite0 3 ") && row.ends_with("42.1 ms       5"), "{row}");
}

#[test]
fn a_low_terminal_says_what_it_hides() {
    let models: Vec<_> = (0..30).map(|number| model(&format!("model_{number}"))).collect();
    let drawn = drawn(&view(models), 120, 10);
    assert_eq!(drawn.len(), 10);
    assert_eq!(drawn[9].text, "and 27 more: the terminal is too low");
}

#[test]
fn a_model_that_is_not_loaded_stands_out() {
    let gone = ModelView { ready: false, runtime: None, ..model("broken") };
    let drawn = drawn(&view(vec![gone]), 80, 20);
    let last = drawn.last().unwrap();
    assert_eq!((last.text.as_str(), last.style), ("broken 3  not loaded", Style::Alarm));
}

#[test]
fn many_cores_share_one_line() {
    let cores = (0..64).map(|core| CoreView { core, load_ratio: Some(f64::from(core) / 63.0), frequency_hertz: None });
    let drawn = drawn(&View { cores: cores.collect(), ..view(Vec::new()) }, 120, 20);
    assert!(drawn[2].text.starts_with("64 cores  ▁▁▁▁▁▂") && drawn[2].text.contains("█  50 %"), "{}", drawn[2].text);
}

#[test]
fn figures_have_the_digits_that_are_worth_it() {
    let numbers = [0.0, 0.05, 7.125, 99.0, 1234.5, 12_345.0, 2_500_000.0].map(|figure| number(Some(figure)));
    assert_eq!(numbers, ["0", "0.05", "7.1", "99", "1234", "12.3k", "2.5M"]);
    let times = [25e-6, 0.0031, 0.25, 2.5].map(|seconds| time(Some(seconds)));
    assert_eq!(times, ["25 us", "3.1 ms", "250 ms", "2.5 s"]);
    assert_eq!([700 << 10, 120 << 20, 5 << 29].map(bytes), ["0 MiB", "120 MiB", "2.5 GiB"]);
}

proptest! {
    #[test]
    fn nothing_is_wider_or_higher_than_the_terminal(
        width in 0_usize..200, height in 0_usize..60, name in ".{0,40}", reason in ".{0,200}", count in 0_usize..40,
    ) {
        let size = TerminalSize { width, height };
        for lines in [drawn(&view(vec![model(&name); count]), width, height), lost("http://box:8000", &reason, size)] {
            prop_assert!(lines.len() <= height);
            for line in lines {
                prop_assert!(line.text.chars().count() <= width && !line.text.contains(char::is_control), "{:?}", line);
            }
        }
    }
}
