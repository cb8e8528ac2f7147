//! The routes of unusual rows, "this was normal", and forecasts.

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_base::serde_messages::in_json;
use ledge_identity::access::CallerAccess;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::reply::json;
use ledge_service::off_thread::blocking;
use serde::Deserialize;

use super::FeaturesHttpState;
use crate::online::bytes_of_json;
use crate::profiles::answer::ForecastRequest;
use crate::{FeatureCaller, JoinKeyValues};

/// The values of a forecast without a `count`.
const FORECAST_VALUES_DEFAULT: usize = 12;

/// `GET /features/unusual`: the entities that are unusual now.
pub async fn unusual(
    State(FeaturesHttpState { store, .. }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let view = view_of(uri.query().unwrap_or_default())?;
    let caller = caller(principal, &access);
    let found = blocking(move || store.unusual_rows(view.as_deref(), &caller)).await?;
    Ok(json(&found))
}

/// `GET /features/forecast`: the next values of a feature of an entity.
pub async fn forecast(
    State(FeaturesHttpState { store, .. }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    Extension(access): Extension<CallerAccess>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let request = forecast_of(uri.query().unwrap_or_default())?;
    let caller = caller(principal, &access);
    let found = blocking(move || store.forecast(&request, &caller)).await?;
    Ok(json(&found))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NormalBody {
    feature_view: String,
    entity: JoinKeyValues,
}

/// `POST /features/unusual/normal`: the last unusual row of an entity is normal. The answer comes once that is written.
pub async fn call_normal(
    State(FeaturesHttpState { store, context }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let (parts, body) = request.into_parts();
    let received = body::read(&parts, body, &context).await?;
    let _tree = received.account.take(bytes_of_json(&received.bytes))?;
    let NormalBody { feature_view, entity } = serde_json::from_slice(&received.bytes).map_err(|error| {
        let message = format!(
            "{}: expected {{\"feature_view\": VIEW, \"entity\": {{\"JOIN_KEY\": VALUE}}}}",
            in_json(&error.to_string())
        );
        bad(message)
    })?;
    let taught = blocking(move || store.call_row_normal(&feature_view, &entity, &principal));
    context.run_to_completion(taught).await??;
    Ok(StatusCode::OK)
}

fn caller(principal: Principal, access: &CallerAccess) -> FeatureCaller {
    // The answers are bounded.
    let account = MemoryAccount::unlimited();
    FeatureCaller { principal, views: access.feature_views().clone(), model: None, account }
}

fn bad(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

fn view_of(query: &str) -> Result<Option<String>, ApiError> {
    let mut view = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name != "view" || view.is_some() {
            return Err(bad(format!("unknown query {name:?}: expected view=NAME, at most once")));
        }
        view = Some(value.into_owned());
    }
    Ok(view)
}

fn forecast_of(query: &str) -> Result<ForecastRequest, ApiError> {
    let (mut feature, mut count, mut entity) = (None, None, Vec::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "feature" if feature.is_none() => {
                let named = value.split_once(':').map(|(view, feature)| (view.to_owned(), feature.to_owned()));
                feature = Some(named.ok_or_else(|| bad("feature: expected VIEW:FEATURE".to_owned()))?);
            }
            "count" if count.is_none() => {
                count = Some(value.parse().map_err(|_| bad("count: expected a number of values".to_owned()))?);
            }
            "feature" | "count" => return Err(bad(format!("{name} is there twice"))),
            _ if entity.iter().any(|(known, _)| *known == *name) => {
                return Err(bad("a join key is there twice".to_owned()));
            }
            _ => entity.push((name.into_owned(), value.into_owned())),
        }
    }
    let expected = "expected feature=VIEW:FEATURE and the join keys of the entity, such as machine_id=press-7";
    let (view, feature) = feature.ok_or_else(|| bad(expected.to_owned()))?;
    Ok(ForecastRequest { view, feature, entity, count: count.unwrap_or(FORECAST_VALUES_DEFAULT) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forecast_is_asked_for_by_feature_and_join_keys() {
        let request = forecast_of("feature=vibration:rms&machine_id=press+7%2F1&count=3").unwrap();
        assert_eq!((&*request.view, &*request.feature, request.count), ("vibration", "rms", 3));
        assert_eq!(request.entity, [("machine_id".to_owned(), "press 7/1".to_owned())]);
        assert_eq!(forecast_of("feature=a:b").unwrap().count, FORECAST_VALUES_DEFAULT);
        for wrong in ["", "m=1", "feature=a", "feature=a:b&feature=a:b", "feature=a:b&count=x", "feature=a:b&m=1&m=2"] {
            assert!(forecast_of(wrong).is_err(), "{wrong}");
        }
        assert_eq!(view_of("view=v").unwrap().as_deref(), Some("v"));
        assert_eq!(view_of("").unwrap(), None);
        assert!(view_of("view=v&view=w").is_err() && view_of("vew=v").is_err());
    }
}
