"""A service on 127.0.0.1 that speaks the API of Dataproc's batches (gRPC) and runs the jobs on this machine.

The jobs are those of `harness.jobs_service`, with another definition and another interface. The store is the S3 server
in place of Google Cloud Storage. The messages are those of Google's client library, so a field that does not exist is
refused. A batch id that exists is refused, even if the request is the same.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.google_provider import add_google_provider
from harness.jobs_service import SUBMIT, JobsService, RemoteJob

PROJECT, REGION = "lake-project", "europe-west3"
PARENT = f"projects/{PROJECT}/locations/{REGION}"
DRIVER_VARIABLE = "spark.dataproc.driverEnv."
STATES = {"SUBMITTED": "PENDING", "SCHEDULED": "PENDING", "SUCCESS": "SUCCEEDED"}
"""The states that have another name here."""


class DataprocService(JobsService):
    """The batches of one region. With a ``limit``, a batch ends after this many seconds."""

    TOKEN = "batch_id"

    def __init__(self, folder: Path, endpoint: str, python: str) -> None:
        super().__init__(folder, endpoint, python)
        self.limit: float | None = None
        self.address = ""
        self.creating = threading.Lock()

    def seconds(self, job: RemoteJob) -> float | None:
        ttl = job.request["environment_config"]["execution_config"]["ttl"]
        return self.limit or float(str(ttl).removesuffix("s"))

    def named(self, batch_id: str) -> RemoteJob | None:
        return next((job for job in self.jobs.values() if job.request["batch_id"] == batch_id), None)

    def _command(self, job: RemoteJob) -> tuple[list[str], dict[str, str]]:
        program = job.request["pyspark_batch"]
        environment = self.environment(job) | {"PYSPARK_PYTHON": self.python, "PYSPARK_DRIVER_PYTHON": self.python}
        options = ["--py-files", *(str(self._fetched(uri, job.folder)) for uri in program["python_file_uris"])]
        for uri in program.get("archive_uris", ()):
            self.unpack(uri, job)
        for name, value in job.request["runtime_config"]["properties"].items():
            if name.startswith(DRIVER_VARIABLE):
                environment[name.removeprefix(DRIVER_VARIABLE)] = value
            else:
                options += ["--conf", f"{name}={value}"]
        app = self._fetched(program["main_python_file_uri"], job.folder)
        return [*SUBMIT, *options, str(app), *program.get("args", ())], environment


@contextmanager
def dataproc_service(folder: Path, endpoint: str, python: str) -> Iterator[DataprocService]:
    """Start a service. At the end, all jobs are killed.

    :param endpoint: the S3 server.
    :param python: the Python of the jobs.
    """
    add_google_provider()
    import grpc

    service = DataprocService(folder, endpoint, python)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(_Handlers(service).all())
    service.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield service
    finally:
        server.stop(None).wait()
        service.close()


class _Handlers:
    def __init__(self, service: DataprocService) -> None:
        self.jobs = service

    def all(self) -> Any:
        import grpc
        from google.cloud import dataproc_v1 as api
        from google.longrunning import operations_pb2
        from google.protobuf import empty_pb2

        def plain(call: Callable[..., Any], request: Any, answer: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda asked, context: self._answered(call, asked, context),
                request_deserializer=getattr(request, "deserialize", None) or request.FromString,
                response_serializer=getattr(answer, "serialize", None) or answer.SerializeToString,
            )

        batches = {
            "CreateBatch": plain(self.create, api.CreateBatchRequest, operations_pb2.Operation),
            "GetBatch": plain(self.get, api.GetBatchRequest, api.Batch),
            "ListBatches": plain(self.list, api.ListBatchesRequest, api.ListBatchesResponse),
        }
        cancel = {"CancelOperation": plain(self.cancel, operations_pb2.CancelOperationRequest, empty_pb2.Empty)}
        return (
            grpc.method_handlers_generic_handler("google.cloud.dataproc.v1.BatchController", batches),
            grpc.method_handlers_generic_handler("google.longrunning.Operations", cancel),
        )

    def _answered(self, call: Callable[..., Any], request: Any, context: Any) -> Any:
        import grpc

        if self.jobs.refusals:
            self.jobs.refusals -= 1
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Quota exceeded")
        return call(request, context)

    def create(self, request: Any, context: Any) -> Any:
        import grpc
        from google.cloud.dataproc_v1 import Batch
        from google.longrunning.operations_pb2 import Operation

        found = {**Batch.to_dict(request.batch, always_print_fields_with_no_presence=False)}
        if fault := _fault(request, found):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        with self.jobs.creating:
            if self.jobs.named(request.batch_id) is not None:
                what = f"Already exists: Failed to create batch: Batch {PARENT}/batches/{request.batch_id}"
                context.abort(grpc.StatusCode.ALREADY_EXISTS, what)
            job = self.jobs.start({**found, "batch_id": request.batch_id})
        if self.jobs.lost_answers:
            self.jobs.lost_answers -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset")
        return Operation(name=_operation(job))

    def get(self, request: Any, context: Any) -> Any:
        import grpc

        job = self.jobs.named(request.name.removeprefix(f"{PARENT}/batches/"))
        if job is None:
            return context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: Batch {request.name}")
        return self._shown(job)

    def list(self, request: Any, context: Any) -> Any:
        import grpc
        from google.cloud.dataproc_v1 import ListBatchesResponse

        if request.parent != PARENT:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"Permission dataproc.batches.list on {request.parent}")
        return ListBatchesResponse(batches=[self._shown(job) for job in self.jobs.jobs.values()])

    def cancel(self, request: Any, context: Any) -> Any:
        import grpc
        from google.protobuf.empty_pb2 import Empty

        job = next((one for one in self.jobs.jobs.values() if _operation(one) == request.name), None)
        if job is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: {request.name}")
        elif not self.jobs.cancel(job):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "The operation has ended")
        return Empty()

    def _shown(self, job: RemoteJob) -> Any:
        from google.cloud.dataproc_v1 import Batch

        batch_id = job.request["batch_id"]
        batch = Batch({name: value for name, value in job.request.items() if name != "batch_id"})
        batch.name, batch.operation = f"{PARENT}/batches/{batch_id}", _operation(job)
        batch.state, batch.state_message = Batch.State[STATES.get(job.state, job.state)], job.details
        batch.runtime_info.output_uri = f"gs://dataproc-staging/{batch_id}/driveroutput"
        return batch


def _operation(job: RemoteJob) -> str:
    return f"projects/{PROJECT}/regions/{REGION}/operations/{uuid.uuid5(uuid.NAMESPACE_OID, job.id)}"


def _fault(request: Any, batch: dict[str, Any]) -> str:
    """What is wrong with a request."""
    if request.parent != PARENT:
        return f"no region {request.parent}"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{2,61}[a-z0-9]", request.batch_id):
        return f"Invalid batch id {request.batch_id}"
    execution = batch["environment_config"]["execution_config"]
    if not 600 <= float(str(execution["ttl"]).removesuffix("s")) <= 14 * 86_400:
        return f"ttl {execution['ttl']} is not between 10 minutes and 14 days"
    if not execution["service_account"].endswith(f"@{PROJECT}.iam.gserviceaccount.com"):
        return f"Service account {execution['service_account']} does not exist"
    return ""
