package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// open begins a watch at url: live, from the newest resource version, or as a watch-list, which sends what exists
// first.
func open(ctx context.Context, client *http.Client, collection string, live bool) (io.ReadCloser, error) {
	query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}}
	if live {
		version, err := newest(ctx, client, collection)
		if err != nil {
			return nil, err
		}
		query.Set("resourceVersion", version)
	} else {
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	}
	return get(ctx, client, collection, query)
}

// newest returns the collection's resource version by a list of one object.
func newest(ctx context.Context, client *http.Client, collection string) (string, error) {
	body, err := get(ctx, client, collection, url.Values{"limit": {"1"}})
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.NewDecoder(body).Decode(&list); err != nil {
		return "", fmt.Errorf("list %s: %w", collection, err)
	}
	return list.Metadata.ResourceVersion, nil
}

func get(ctx context.Context, client *http.Client, collection string, query url.Values) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, collection+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s answered %s", collection, resp.Status)
	}
	return resp.Body, nil
}
