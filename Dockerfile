# docker build --build-arg VERSION=v0.1.0 --tag kubeferry:v0.1.0 .
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
ARG TARGETOS TARGETARCH
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /kubeferry ./cmd/exporter

# Nothing but the program and the authorities that it trusts; it writes to no file by itself.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /kubeferry /kubeferry
USER 65532:65532
EXPOSE 8080 8443
ENTRYPOINT ["/kubeferry"]
CMD ["run"]
