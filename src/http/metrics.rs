//! `GET /metrics`: the metrics of every part, of the process and of the machine, in Prometheus's text format or in
//! OpenMetrics.
//!
//! Nothing is counted twice: the figures are read from their owners at each scrape, and nothing runs between scrapes.

mod disks;
mod exposition;
mod process;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ledge_identity::access::CallerAccess;
use ledge_part::metrics::{gauge_value, open_metrics, single};
use ledge_part::reply::error;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use self::exposition::ExpositionFormat;
use super::App;

/// Answers with the metrics that the caller may see.
pub async fn metrics(
    State(app): State<App>,
    Extension(access): Extension<CallerAccess>,
    headers: HeaderMap,
) -> Response {
    let format = ExpositionFormat::accepted(&headers);
    // Off the async threads: a hardware sensor may take milliseconds.
    let scrape = move || open_metrics(move |encoder| encode(encoder, &app, &access)).map(|text| format.write(text));
    let Ok(Ok(text)) = tokio::task::spawn_blocking(scrape).await else {
        return error(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written");
    };
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, HeaderValue::from_static("accept"))];
    (headers, text).into_response()
}

fn encode(encoder: &mut DescriptorEncoder<'_>, app: &App, access: &CallerAccess) -> std::fmt::Result {
    process::encode(encoder)?;
    let ready = ConstGauge::new(i64::from(app.is_ready()));
    single(
        encoder,
        "ready",
        "1 once every part has started and while a model serves or none is configured, else 0",
        &ready,
    )?;
    process::encode_machine(encoder, &app.machine().read())?;
    disks::encode(encoder, app.stores())?;
    single(
        encoder,
        "http_body_memory_bytes",
        "Bodies of requests and answers that are held now; seven eighths of http.max_memory_bytes are their limit",
        &ConstGauge::new(gauge_value(app.context().memory().used())),
    )?;
    app.parts().iter().try_for_each(|part| part.metrics(encoder, access))
}
