//! The table of methods, and gRPC as a part of the daemon.

use std::sync::Arc;

use axum::extract::Request;
use axum::routing::post;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_identity::access::Access;
use ledge_models::serving::Serving;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::needs::{INFER, OPERATE, PUBLIC, VIEW, VIEW_OR_INFER};
use ledge_part::route::{BoundRoute, Route, RouteRule, RouteScope, bind};
use ledge_part::{Subsystem, access};
use ledge_service::readiness::Readiness;
use ledge_service::shutdown::Shutdown;

use super::{health, infer, models, reflection};

/// The methods of gRPC, by their paths in HTTP/2.
pub const ROUTES: &[Route<Methods>] = &[
    Route::post("/inference.GRPCInferenceService/ServerLive", PUBLIC, || post(health::server_live)).grpc(),
    Route::post("/inference.GRPCInferenceService/ServerReady", PUBLIC, || post(health::server_ready)).grpc(),
    Route::post("/inference.GRPCInferenceService/ServerMetadata", VIEW_OR_INFER, || post(models::server_metadata))
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelReady", VIEW_OR_INFER, || post(models::model_ready))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelMetadata", VIEW_OR_INFER, || post(models::model_metadata))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelInfer", INFER, || post(infer::model_infer))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelStreamInfer", INFER, || post(infer::model_stream_infer))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelConfig", VIEW_OR_INFER, || post(models::model_config))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/ModelStatistics", VIEW, || post(models::model_statistics))
        .scope(RouteScope::Configured)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/RepositoryIndex", VIEW, || post(models::repository_index))
        .scope(RouteScope::Listed)
        .grpc(),
    Route::post("/inference.GRPCInferenceService/RepositoryModelLoad", OPERATE, || post(models::load))
        .scope(RouteScope::Configured)
        .audited()
        .grpc(),
    Route::post("/inference.GRPCInferenceService/RepositoryModelUnload", OPERATE, || post(models::unload))
        .scope(RouteScope::Configured)
        .audited()
        .grpc(),
    Route::post("/grpc.health.v1.Health/Check", PUBLIC, || post(health::check)).grpc(),
    Route::post("/grpc.health.v1.Health/List", PUBLIC, || post(health::list)).grpc(),
    Route::post("/grpc.health.v1.Health/Watch", PUBLIC, || post(health::watch)).grpc(),
    Route::post("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", PUBLIC, reflection::v1).grpc(),
    Route::post("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", PUBLIC, reflection::v1alpha).grpc(),
];

/// gRPC as a part of the daemon.
#[derive(Debug, Clone)]
pub struct GrpcPart {
    pub serving: Serving,
    pub readiness: Arc<Readiness>,
    pub shutdown: Shutdown,
}

impl Subsystem for GrpcPart {
    fn name(&self) -> &'static str {
        "gRPC"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &Methods { part: self.clone(), context: context.clone() })
    }
}

/// The state of every method.
#[derive(Debug, Clone)]
pub struct Methods {
    part: GrpcPart,
    context: HandlerContext,
}

/// A caller that the guard has let in, and the rule that it came by.
#[derive(Debug, Clone)]
pub struct AdmittedCaller {
    pub principal: Principal,
    pub access: Access,
    rule: RouteRule,
}

impl AdmittedCaller {
    /// The caller of a method that is not public.
    pub fn of(request: &Request) -> Result<Self, ApiError> {
        let extensions = request.extensions();
        let found = || {
            let principal = extensions.get::<Principal>()?.clone();
            Some(Self { principal, access: extensions.get::<Access>()?.clone(), rule: *extensions.get()? })
        };
        found().ok_or_else(|| ApiError::new(StatusCode::UNAUTHORIZED, "authentication required"))
    }
}

impl Methods {
    pub fn serving(&self) -> &Serving {
        &self.part.serving
    }

    pub fn context(&self) -> &HandlerContext {
        &self.context
    }

    pub fn shutdown(&self) -> &Shutdown {
        &self.part.shutdown
    }

    pub fn is_ready(&self) -> bool {
        self.serving().is_ready(&self.part.readiness)
    }

    /// Refuses a model that is not one of the caller's.
    pub fn check_model(&self, caller: &AdmittedCaller, model: &ModelName) -> Result<(), ApiError> {
        if caller.access.has_model(model) {
            return Ok(());
        }
        Err(access::outside_scope(self.serving().audit(), &caller.rule, &caller.principal, &caller.access))
    }
}
