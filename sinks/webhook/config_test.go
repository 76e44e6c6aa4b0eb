package webhook

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Config)
		want   []string // paths; a warning begins with "~"
	}{
		{"least", func(*Config) {}, nil},
		{"no url", func(c *Config) { c.URL = "" }, []string{"url"}},
		{"relative url", func(c *Config) { c.URL = "/hook" }, []string{"url"}},
		{"no host", func(c *Config) { c.URL = "https:///hook" }, []string{"url"}},
		{"other scheme", func(c *Config) { c.URL = "ftp://example.com" }, []string{"url"}},
		{"user in url", func(c *Config) { c.URL = "https://u:p@example.com" }, []string{"url"}},
		{"fragment", func(c *Config) { c.URL = "https://example.com/#x" }, []string{"url"}},
		{"own header", func(c *Config) { c.Headers = map[string]string{"content-TYPE": "x"} }, []string{"headers.content-TYPE"}},
		{"own ce header", func(c *Config) { c.Headers = map[string]string{"Ce-Id": "x"} }, []string{"headers.Ce-Id"}},
		{"own raw header", func(c *Config) { c.Headers = map[string]string{"Kubeferry-Id": "x"} }, []string{"headers.Kubeferry-Id"}},
		{"own signature header", func(c *Config) { c.Headers = map[string]string{"Webhook-ID": "x"} }, []string{"headers.Webhook-ID"}},
		{"header twice", func(c *Config) {
			c.Headers = map[string]string{"x-a": "1", "X-A": "2", "X-a": "3", "X-B": "4"}
		}, []string{"headers.X-a", "headers.x-a"}},
		{"header name", func(c *Config) { c.Headers = map[string]string{"a b": "x"} }, []string{"headers.a b"}},
		{"header value", func(c *Config) { c.Headers = map[string]string{"a": "x\r\ny: z"} }, []string{"headers.a"}},
		{"two authorizations", func(c *Config) {
			c.Headers = map[string]string{"authorization": "x"}
			c.Auth = &Auth{BearerTokenFile: "f"}
		}, []string{"headers.authorization"}},
		{"client credentials", func(c *Config) {
			c.Auth = &Auth{OAuth2: &sinks.OAuth2{TokenURL: "https://a/token", ClientID: "c", ClientSecretFile: "f"}}
		}, nil},
		{"token server in plaintext", func(c *Config) {
			c.Auth = &Auth{OAuth2: &sinks.OAuth2{TokenURL: "http://a/token", ClientSecret: "s"}}
		}, []string{"auth.oauth2.tokenURL", "auth.oauth2.clientID"}},
		{"three auths", func(c *Config) {
			c.Auth = &Auth{BearerTokenFile: "f", Basic: &Basic{Username: "u", Password: "p"}, OAuth2: &sinks.OAuth2{TokenURL: "https://a", ClientID: "c", ClientSecret: "s"}}
		}, []string{"auth"}},
		{"no frame for several", func(c *Config) { c.Batch.MaxRecords, c.Batch.Framing = 2, "none" }, []string{"batch.framing"}},
		{"expressions", func(c *Config) {
			c.Success, c.Permanent = `status == 200 && body.?ok.orValue(false)`, `body.error in ["a"] || headers["x"].startsWith("y")`
		}, nil},
		{"bad expressions", func(c *Config) { c.Success, c.Permanent = `statuss == 200`, `status + 1` }, []string{"success", "permanent"}},
		{"no auth", func(c *Config) { c.Auth = &Auth{} }, []string{"auth"}},
		{"two auths", func(c *Config) {
			c.Auth = &Auth{BearerTokenFile: "f", Basic: &Basic{Username: "u", Password: "p"}}
		}, []string{"auth"}},
		{"two passwords", func(c *Config) {
			c.Auth = &Auth{Basic: &Basic{Username: "u", Password: "p", PasswordFile: "f"}}
		}, []string{"auth.basic"}},
		{"no user", func(c *Config) { c.Auth = &Auth{Basic: &Basic{Password: "p"}} }, []string{"auth.basic.username"}},
		{"previous alone", func(c *Config) { c.Signature = &Signature{PreviousSecretFile: "f"} }, []string{"signature.secretFile"}},
		{"short secrets", func(c *Config) {
			coded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", leastSecret-1)))
			c.Signature = &Signature{SecretFile: write(t, "bare", []byte(coded+"\n")), PreviousSecretFile: write(t, "prefix", []byte("whsec_"+coded))}
		}, []string{"~signature.secretFile", "~signature.previousSecretFile"}},
		{"long secrets", func(c *Config) {
			coded := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", leastSecret)))
			c.Signature = &Signature{SecretFile: write(t, "bare", []byte(coded)), PreviousSecretFile: write(t, "prefix", []byte("whsec_"+coded))}
		}, nil},
		{"secrets that are not base64", func(c *Config) {
			text := strings.Repeat("x", leastSecret) + " y"
			c.Signature = &Signature{SecretFile: write(t, "bare", []byte(text)), PreviousSecretFile: write(t, "prefix", []byte("whsec_"+text))}
		}, []string{"signature.secretFile", "signature.previousSecretFile"}},
		{"secrets elsewhere", func(c *Config) { c.Signature = &Signature{SecretFile: "/no/such/file"} }, nil},
		{"tls over plain http", func(c *Config) { c.URL, c.TLS = "http://localhost", &sinks.TLS{} }, []string{"~tls"}},
		{"plain http", func(c *Config) { c.URL = "http://example.com" }, []string{"~url"}},
		{"statuses", func(c *Config) { c.PermanentStatuses = []int{409, 400, 413} }, nil},
		{"no statuses", func(c *Config) { c.PermanentStatuses = []int{} }, nil},
		{"no refusal", func(c *Config) { c.PermanentStatuses = []int{200, 302, 600} }, []string{"permanentStatuses[0]", "permanentStatuses[1]", "permanentStatuses[2]"}},
		{"whose fault", func(c *Config) { c.PermanentStatuses = []int{400, 401, 404, 503} }, []string{"~permanentStatuses[1]", "~permanentStatuses[2]", "~permanentStatuses[3]"}},
		{"common", func(c *Config) { c.Concurrency, c.Batch.MaxRecords = 0, 0 }, []string{"batch.maxRecords", "concurrency"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var got []string
			for _, fault := range newConfig(func(c *Config) {
				c.URL = "https://example.com/hook"
				test.change(c)
			}).Validate() {
				if path := fault.Path; fault.Warning {
					got = append(got, "~"+path)
				} else {
					got = append(got, path)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got faults %q, want %q", got, test.want)
			}
		})
	}
}

// TestCredentialsWithoutTLS has every place of a credential, and what only resembles one.
func TestCredentialsWithoutTLS(t *testing.T) {
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"} {
		t.Setenv(name, "")
	}
	header := func(name string) func(t *testing.T, c *Config) {
		return func(_ *testing.T, c *Config) { c.Headers = map[string]string{name: "x"} }
	}
	query := func(text string) func(t *testing.T, c *Config) {
		return func(_ *testing.T, c *Config) { c.URL += "?" + text }
	}
	proxy := func(url string) func(t *testing.T, c *Config) {
		return func(t *testing.T, _ *Config) {
			t.Setenv("HTTP_PROXY", url)
			t.Setenv("HTTPS_PROXY", url)
		}
	}
	type test struct {
		name   string
		change func(t *testing.T, c *Config)
	}
	over := func(scheme string, tests []test, want ...string) {
		for _, test := range tests {
			t.Run(scheme+" "+test.name, func(t *testing.T) {
				var got []string
				for _, insecure := range []bool{false, true} {
					c := NewConfig()
					c.URL, c.InsecureCredentials = scheme+"://hooks.example.com/", insecure
					test.change(t, c)
					for _, fault := range c.Validate() {
						got = append(got, fmt.Sprint(fault.Path, " ", fault.Warning))
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
	credentials := []test{
		{"bearer token", func(_ *testing.T, c *Config) { c.Auth = &Auth{BearerTokenFile: "f"} }},
		{"basic", func(_ *testing.T, c *Config) { c.Auth = &Auth{Basic: &Basic{Username: "u", PasswordFile: "f"}} }},
	}
	for _, name := range []string{"authorization", "Proxy-Authorization", "X-Auth-Token", "X-Api-Key", "apikey", "Cookie", "X-Amz-Security-Token", "X-Secret", "X-Hub-Signature", "X-PagerDuty-APIKey", "DD-API-KEY", "X-Session-Id", "PRIVATE-TOKEN", "X-Auth"} {
		credentials = append(credentials, test{name, header(name)})
	}
	for _, text := range []string{"token=x", "a=b&access_token=x", "api_key=x", "apiKey=x", "sig=x", "user=u&password=x", "pwd=x", "to%6ben=x", "clientSecret=x", "authtoken=x", "sessionid=x", "key1=x"} {
		credentials = append(credentials, test{text, query(text)})
	}
	logins := []test{
		{"proxy", proxy("http://u:p@proxy.example.com:3128")},
		{"proxy without a scheme", proxy("u:p@proxy.example.com:3128")},
		{"SOCKS proxy", proxy("socks5://u:p@proxy.example.com:1080")},
	}
	none := []test{
		{"nothing", func(*testing.T, *Config) {}},
		{"signature", func(_ *testing.T, c *Config) { c.Signature = &Signature{SecretFile: "/no/such/file"} }},
		{"X-Team", header("X-Team")},
		{"X-Scope-OrgID", header("X-Scope-OrgID")},
		{"X-Author", header("X-Author")},
		{"X-Design", header("X-Design")},
		{"X-Authority", header("X-Authority")},
		{"X-Keyboard", header("X-Keyboard")},
		{"monkey", query("monkey=x&assignee=y&passive=z&tokenize=n&bypass=n")},
		{"page", query("page=token&cluster=eu")},
		{"proxy without a login", proxy("http://proxy.example.com:3128")},
		{"proxy with TLS", proxy("https://u:p@proxy.example.com:3128")},
	}
	asked := []string{"url false", "insecureCredentials true"}
	over("http", credentials, asked...)
	over("https", credentials)
	over("http", logins, asked...)
	over("https", logins, asked...)
	over("http", none, "url true", "url true") // of the records
	over("https", none)
	for _, host := range []string{"localhost", "127.0.0.1:8080", "[::1]"} {
		c := NewConfig()
		c.URL = "http://" + host + "/hook"
		if faults := c.Validate(); len(faults) > 0 {
			t.Errorf("%s: got %v, want nothing: records do not leave this machine", host, faults)
		}
	}
}

// TestLimits: a JSON array of several records has no place for the headers of each.
func TestLimits(t *testing.T) {
	for records, want := range map[int]bool{1: false, 2: true} {
		config := NewConfig()
		config.Batch.MaxRecords = records
		if got := config.Limits().LosesHeaders; got != want {
			t.Errorf("%d records: got %v, want %v", records, got, want)
		}
	}
	config := NewConfig()
	if config.Batch.Framing = "ndjson"; !config.Limits().LosesHeaders {
		t.Error("a line has no place for headers, and keeps them")
	}
}

func TestYAML(t *testing.T) {
	config := NewConfig()
	err := yaml.Unmarshal([]byte(`
url: https://example.com/k8s
method: PUT
headers: {X-Team: audit}
auth: {basic: {username: u, passwordFile: /p}}
signature: {secretFile: /s, previousSecretFile: /o}
compression: gzip
permanentStatuses: [409]
success: body.ok
batch: {maxRecords: 100, linger: 7ms, framing: ndjson}
timeout: 3s
tls: {caFile: /ca}
`), config)
	if err != nil {
		t.Fatal(err)
	}
	if config.Auth.Basic.PasswordFile != "/p" || config.Signature.PreviousSecretFile != "/o" || config.TLS.CAFile != "/ca" ||
		config.Batch.MaxRecords != 100 || config.framing() != "ndjson" || config.Success != "body.ok" || config.Batch.MaxBytes != 1<<20 || config.Limits().Timeout.Seconds() != 3 || !slices.Equal(config.PermanentStatuses, []int{409}) {
		t.Errorf("got %+v", config)
	}
}
